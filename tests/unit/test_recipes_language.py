"""The byte-level language model: its data, its model, and that it learns."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from openclaw_tasks.errors import RecipeError
from openclaw_tasks.recipes.language import ByteLM, ByteWindows

TEXT = b"the quick brown fox jumps over the lazy dog. " * 200


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "a.txt").write_bytes(TEXT)
    (tmp_path / "b.txt").write_bytes(b"0123456789")
    return tmp_path


def small(texts: Path, **recipe_args: object) -> ByteLM:
    sizes = {"width": 16, "layers": 1, "heads": 2, "context": 16, "dropout": 0.0}
    return ByteLM(data=f"{texts}/**/*.txt", **{**sizes, **recipe_args})  # type: ignore[arg-type]


def test_samples_are_windows_that_share_one_byte_and_cover_the_sorted_files(texts: Path) -> None:
    dataset = small(texts).dataset()
    assert isinstance(dataset, ByteWindows)
    text = (b"0123456789" + TEXT)[: dataset.text.numel()]
    assert bytes(dataset[0].tolist()) == text[:17]
    assert bytes(dataset[1].tolist()) == text[16:33]
    assert dataset[len(dataset) - 1].shape == (17,)
    with pytest.raises(IndexError):
        dataset[len(dataset)]


def test_every_twentieth_file_by_name_is_held_out(tmp_path: Path) -> None:
    for number in range(1, 41):
        (tmp_path / f"{number:02}.txt").write_bytes(bytes([number]) * 100)
    dataset = small(tmp_path).dataset()
    assert isinstance(dataset, ByteWindows)
    assert dataset.text.numel() == 38 * 100
    assert not set(dataset.text.tolist()) & {20, 40}


def test_fingerprint_follows_the_text_and_the_context_but_not_the_place(
    texts: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    copy = tmp_path_factory.mktemp("copy") / "all.txt"
    copy.write_bytes(b"0123456789" + TEXT)
    datasets = [
        small(texts).dataset(),
        ByteLM(data=str(copy), context=16).dataset(),
        small(texts, context=8).dataset(),
        ByteLM(data=f"{texts}/b.txt", context=4).dataset(),
    ]
    first, same, *others = [dataset.fingerprint() for dataset in datasets]  # type: ignore[attr-defined]
    assert first == same
    assert first not in others


def test_pattern_without_a_match_is_refused_by_its_resolved_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecipeError, match=f"no file matches {tmp_path}/texts/"):
        ByteLM(data="texts/*.txt").dataset()


def test_text_shorter_than_one_sample_is_refused_with_both_numbers(texts: Path) -> None:
    with pytest.raises(RecipeError, match=r"10 bytes .*context=128"):
        ByteLM(data=f"{texts}/b.txt").dataset()


@pytest.mark.parametrize(
    ("recipe_args", "said"),
    [
        ({"width": 30, "heads": 4}, "width=30 must be a multiple of twice recipe_args.heads=4"),
        ({"context": 0}, "context=0 must be"),
        ({"layers": 1.5}, "layers=1.5 must be a whole number"),
        ({"warmup": 10, "decay": 10}, "decay=10 must be greater than recipe_args.warmup=10"),
    ],
)
def test_sizes_that_cannot_be_are_refused(recipe_args: dict[str, object], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        ByteLM(**recipe_args)  # type: ignore[arg-type]


def test_standard_library_is_the_default_text() -> None:
    dataset = ByteLM(context=1024).dataset()
    assert len(dataset) > 1000  # type: ignore[arg-type]


def test_no_byte_sees_those_after_it(texts: Path) -> None:
    torch.manual_seed(0)
    model = small(texts).model()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    bytes_before = torch.randint(0, 256, (1, 16))
    changed = bytes_before.clone()
    changed[0, 9] += 1
    before, after = model(bytes_before), model(changed % 256)
    assert torch.equal(before[0, :9], after[0, :9])
    assert not torch.equal(before[0, 9:], after[0, 9:])


def test_embedding_and_output_are_one_parameter_when_tied(texts: Path) -> None:
    def names(tied: bool) -> list[str]:
        return [name for name, _ in small(texts, tied=tied).model().named_parameters()]

    assert set(names(False)) - set(names(True)) == {"output.weight"}


def test_schedule_warms_up_then_decays_to_a_tenth_and_stays(texts: Path) -> None:
    recipe = small(texts, warmup=4, decay=14)
    assert [recipe.schedule(applied) for applied in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert recipe.schedule(9) == pytest.approx(0.55)
    assert recipe.schedule(14) == pytest.approx(0.1)
    assert recipe.schedule(1000) == pytest.approx(0.1)
    assert small(texts, warmup=4).schedule(1000) == 1.0
    assert small(texts, warmup=0).schedule(0) == 1.0


def test_loss_falls_and_held_out_text_is_predicted_better(texts: Path) -> None:
    recipe = small(texts, lr=1e-2, warmup=5)
    torch.manual_seed(0)
    model, dataset = recipe.model(), recipe.dataset()
    before = recipe.evaluate(model)["bits_per_byte"]
    optimizer = recipe.optimizer(list(model.parameters()))
    losses = []
    for step in range(40):
        result = recipe.loss(model, recipe.collate([dataset[step * 8 + i] for i in range(8)]))
        optimizer.zero_grad()
        (result.loss / result.items).backward()
        optimizer.step()
        losses.append(result.loss.item() / result.items)
        assert result.items == 8 * 16
    assert losses[0] == pytest.approx(math.log(256), rel=0.1)
    assert losses[-1] < 3
    assert recipe.evaluate(model)["bits_per_byte"] < before - 1
    assert model.training


def test_text_too_short_to_hold_any_out_is_not_evaluated(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(TEXT[:200])
    recipe = small(tmp_path)
    assert recipe.evaluate(recipe.model()) == {}

"""What is read from the text of a compiled program."""

import pytest

from benchmarks.evidence.hlo import bytes_copied, bytes_moved, bytes_moved_inside, collectives, difference

PROGRAM = """
HloModule step

%body (carry: (f32[8], pred[])) -> (f32[8], pred[]) {
  %carry = (f32[8]{0}, pred[]) parameter(0)
  %x = f32[8]{0} get-tuple-element(%carry), index=0
  %twice = f32[8]{0} fusion(%x), kind=kLoop, calls=%fused
  %done = pred[] constant(false)
  ROOT %out = (f32[8]{0}, pred[]) tuple(%twice, %done)
}

ENTRY %main (a: f32[8], b: bf16[8], full: pred[]) -> (f32[8], pred[]) {
  %a = f32[8]{0} parameter(0)
  %b = bf16[8]{0} parameter(1)
  %full = pred[] parameter(2)
  %kept = f32[8]{0} copy(%a)
  %near = bf16[8]{0:S(1)} copy(%b)
  %part-start = ((f32[8]{0}), f32[2]{0:S(1)}, s32[]{:S(2)}) slice-start(%a), slice={[0:2]}
  %sum = f32[8]{0} fusion(%kept, %near), kind=kLoop, calls=%fused
  %reduced = f32[8]{0} all-reduce(%sum), to_apply=%add
  %both = (f32[8]{0}, pred[]) tuple(%reduced, %full)
  ROOT %loop = (f32[8]{0}, pred[]) while(%both), condition=%condition, body=%body
}
"""


def test_bytes_are_those_of_operands_and_results_outside_of_the_memory_of_the_chip() -> None:
    assert bytes_moved(PROGRAM) == (32 + 32) + 16 + 8 + (32 + 32) + (32 + 32)


def test_a_copy_into_the_memory_of_the_chip_is_not_a_copy() -> None:
    assert bytes_copied(PROGRAM) == 32 + 32


def test_a_turn_of_a_loop_is_counted_apart() -> None:
    assert bytes_moved_inside(PROGRAM) == 32 + 32


BRANCHES = ["branch_computations={%other, %body}", "true_computation=%body, false_computation=%other"]


@pytest.mark.parametrize("branches", BRANCHES)
def test_the_branch_for_a_true_flag_is_counted_apart(branches: str) -> None:
    assert bytes_moved_inside(PROGRAM.replace("condition=%condition, body=%body", branches)) == 32 + 32


def test_collectives_are_counted_by_kind() -> None:
    assert collectives(PROGRAM) == {"all-reduce": 1}


@pytest.mark.parametrize(
    "line, expected",
    [("", ""), ("  %kept = f32[8]{0} copy(%a)\n", "-1 copy"), ("f32[8]{0} fusion(%kept", "+1 add, -1 fusion")],
)
def test_programs_differ_in_the_kinds_of_their_operations(line: str, expected: str) -> None:
    other = PROGRAM.replace(line, line.replace("fusion", "add") if "fusion" in line else "")
    assert difference(other, PROGRAM) == expected

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
    assert bytes_copied(PROGRAM) == 32 + 32
    assert collectives(PROGRAM) == {"all-reduce": 1}


@pytest.mark.parametrize("called", ["condition=%condition, body=%body", "branch_computations={%other, %body}"])
def test_a_turn_of_a_loop_and_the_branch_for_a_true_flag_are_counted_apart(called: str) -> None:
    assert bytes_moved_inside(PROGRAM.replace("condition=%condition, body=%body", called)) == 32 + 32


@pytest.mark.parametrize(
    "line, other, expected",
    [
        ("", "", ""),
        ("  %kept = f32[8]{0} copy(%a)\n", "", "-1 copy"),
        ("f32[8]{0} fusion(%kept", "f32[8]{0} add(%kept", "+1 add, -1 fusion"),
    ],
)
def test_programs_differ_in_the_kinds_of_their_operations(line: str, other: str, expected: str) -> None:
    assert difference(PROGRAM.replace(line, other), PROGRAM) == expected

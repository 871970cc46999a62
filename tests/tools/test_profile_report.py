"""What tools/profile_report.py makes of Nsight Compute's samples."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import profile_report

COLUMNS = [
    "Address", "Source", "# Samples", "Instructions Executed",
    "stall_barrier", "stall_long_sb", "stall_no_inst", "stall_selected",
    "stall_selected (Not Issued)",
]  # fmt: skip
SOURCE = """// a file
struct Turn {
  void wait() const {
    go();
  }
};

template <int kFeed>
__device__ void main_loop(Smem& s,
                          int k_blocks) {
  products();
}

__device__ inline const Work& wait_entry(Smem& s) {
  return s.work;
}
"""
# address, instruction, samples, times, barrier, long_sb, no_inst, selected; its places
LOOP = [
    (0x100, "S2R R0, SR_TID.X", 20, 10, 0, 0, 10, 1, [("compute.cuh", 900)]),
    (0x110, "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R1+URZ], R2", 10, 100, 0, 0, 0, 10,
     [("barrier.cuh", 42), ("compute.cuh", 11)]),
    (0x118, "@!P0 BRA 0x170", 190, 100, 0, 100, 0, 10, [("barrier.cuh", 42), ("compute.cuh", 11)]),
    (0x120, "HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8].tnspA.tnspB, R24, gsb0", 100, 100, 0, 0, 0, 10,
     [("compute.cuh", 11)]),
    (0x130, "WARPGROUP.DEPBAR.LE gsb0, 0x1", 150, 100, 100, 0, 0, 10, [("compute.cuh", 11)]),
    (0x140, "@!P1 BRA 0x110", 50, 100, 0, 0, 0, 10, [("compute.cuh", 11)]),
    (0x150, "STG.E [R2], R3", 180, 10, 0, 0, 0, 1, [("memory.cuh", 7), ("wgrad.cuh", 3)]),
    (0x160, "EXIT", 0, 10, 0, 0, 0, 1, [("kernel.cu", 5)]),
    (0x170, "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R1+URZ], R2", 0, 10, 0, 0, 0, 1,
     [("barrier.cuh", 42), ("compute.cuh", 11)]),
    (0x180, "@!P0 BRA 0x170", 80, 10, 0, 80, 0, 1, [("barrier.cuh", 42), ("compute.cuh", 11)]),
    (0x190, "BRA 0x120", 20, 10, 0, 20, 0, 1, [("barrier.cuh", 42), ("compute.cuh", 11)]),
    (0x1a0, "BRA 0x1a0", 0, 0, 0, 0, 0, 0, [("kernel.cu", 6)]),
]  # fmt: skip


def samples(instructions, name="monomoe::sm90::backward_kernel(monomoe::cuda::Launch)"):
    rows = [f'"Kernel Name","{name}",', ",".join(f'"{c}"' for c in COLUMNS)]
    for address, text, count, times, *stalls, _ in instructions:
        cells = [f"0x{address:x}", text, count, times, *stalls, 99]
        rows.append(",".join(f'"{c}"' for c in cells))
    return iter(rows)


def disassembly(instructions, name="backward_kernel"):
    yield f".text._ZN7monomoe4sm9041_GLOBAL__N__3df6_9_kernel_cu_1dde{len(name)}{name}ENS_4cuda6LaunchE:"
    for address, text, *_, places in instructions:
        inner, *outer = places
        inlined = f' inlined at "/src/{outer[0][0]}", line {outer[0][1]}' if outer else ""
        yield f'\t//## File "/src/{inner[0]}", line {inner[1]}{inlined}'
        yield f"        /*{address:04x}*/                   {text} ;"


@pytest.fixture
def functions(tmp_path):
    (tmp_path / "compute.cuh").write_text(SOURCE)
    return profile_report.Functions(tmp_path)


def placed(instructions, functions):
    (kernel,) = profile_report.read_samples(samples(instructions))
    places = profile_report.read_places(disassembly(instructions), functions)
    profile_report.place(kernel, places[kernel.name])
    return kernel


def test_lines_are_known_by_the_definition_around_them(functions):
    assert [functions.at("compute.cuh", n) for n in (3, 11, 15)] == ["Turn", "main_loop", "wait_entry"]
    assert functions.at("compute.cuh", 900) == functions.at("elsewhere.h", 3) == ""


def test_warps_are_shared_out_by_role(functions):
    roles = profile_report.roles(placed(LOOP, functions))
    assert list(roles) == ["main loop", "epilogue: weight gradients", "consumer, other", "other"]
    assert roles["main loop"] == (pytest.approx(12 * 600 / 800), 0)
    assert roles["consumer, other"] == (pytest.approx(12 * 20 / 800), pytest.approx(12 * 10 / 800))


def test_a_loop_is_what_its_branch_goes_back_to(functions):
    (loop,) = profile_report.loops(placed(LOOP, functions))
    assert loop.product.endswith("tnspA tnspB") and loop.times == 100
    assert loop.cycles == pytest.approx(60)  # 600 samples, 100 times, a cycle is 0.1 samples
    assert loop.for_products == pytest.approx(19)  # 100 at the wait, 90 of unknown reason
    assert loop.for_stage == pytest.approx(20)  # half of it behind the kernel's end


@pytest.mark.parametrize("other", [LOOP[:-1], [*LOOP[:-1], (0x1a0, "NOP", *LOOP[-1][2:])]])
def test_another_build_is_refused(other, functions):
    (kernel,) = profile_report.read_samples(samples(LOOP))
    places = profile_report.read_places(disassembly(other), functions)
    with pytest.raises(SystemExit, match="backward_kernel"):
        profile_report.place(kernel, places["backward_kernel"])


def test_it_runs_as_a_program(tmp_path, monkeypatch, capsys):
    files = [tmp_path / "samples.csv", tmp_path / "kernels.sass"]
    files[0].write_text("\n".join(samples(LOOP)))
    files[1].write_text("\n".join(disassembly(LOOP)))
    monkeypatch.setattr(sys, "argv", ["profile_report.py", *map(str, files)])
    assert profile_report.main() == 0
    out = capsys.readouterr().out
    assert "backward_kernel: warps of 12" in out and "tnspA tnspB" in out


def test_every_file_and_function_of_a_role_exists():
    functions = profile_report.Functions(profile_report.SOURCES)
    for _, *places in profile_report.ROLES:
        for file, function in places:
            names = [functions.at(file, n) for n in range(1, 2000)]
            assert any(names), file
            assert function is None or function in names, (file, function)

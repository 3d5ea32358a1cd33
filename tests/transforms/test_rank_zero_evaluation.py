"""Evaluation on rank 0 alone becomes evaluation on all ranks."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from migrating import analyse_texts
from state_programs import DDP, findings
from to_fsdp2.transforms.findings import Level


def test_evaluation_with_data_of_rank_zero_alone_holds_the_group() -> None:
    (finding,) = findings(
        DDP,
        """
        def main(net, rank, load):
            model = DDP(net)
            if rank == 0:
                batch = load()
            if rank == 0:
                output = model(batch)
                print(output)
        """,
        "FS414",
    )
    assert finding.level is Level.MANUAL
    assert "batch exists on some ranks only" in finding.message


TRAINING = DDP + textwrap.dedent(
    '''
    def is_main():
        return dist.get_rank() == 0


    def save(network, optimizer, path):
        torch.save({"model": network.state_dict(), "optimizer": optimizer.state_dict()}, path)


    class Trainer:
        def __init__(self):
            torch.manual_seed(dist.get_rank())
            self.net = DDP(torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Dropout(0.5), torch.nn.Linear(7, 3)))
            self.opt = torch.optim.AdamW(self.net.parameters(), lr=1e-2)

        @torch.no_grad()
        def sample(self):
            self.net.eval()
            output = self.net(torch.randn(4, 5)).sum().item()
            self.net.train()
            return output

        def fit(self):
            for step in range(4):
                loss = self.net(torch.randn(4, 5)).pow(2).mean()
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
                if is_main() and step % 2 == 1:
                    output = self.sample()
                    print(f"{step} {output:.5f}")
                    save(self.net, self.opt, "checkpoint.pt")
                    state = torch.load("checkpoint.pt")["model"]
                    print({name: round(float(value.double().sum()), 5) for name, value in state.items()})


    dist.init_process_group("gloo")
    Trainer().fit()
    dist.destroy_process_group()
    '''
)


@pytest.mark.slow
def test_evaluation_and_saving_on_rank_zero_train_and_write_the_same(tmp_path: Path) -> None:
    analysis, results = analyse_texts({"train.py": TRAINING})
    assert Level.MANUAL not in {finding.level for finding in analysis.findings}
    written = [run(tmp_path / "old", TRAINING), run(tmp_path / "new", results["train.py"])]
    assert written[0] == written[1]
    assert "module.0.weight" in written[0]


def run(folder: Path, text: str) -> str:
    """What two gloo ranks print."""
    folder.mkdir()
    (folder / "train.py").write_text(text)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.stdout, done.stderr[-2000:]
    return done.stdout

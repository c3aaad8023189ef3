"""A run that a launcher restarts with fewer or more ranks resumes.

The tests do to the ranks what torchrun and Slurm do: they set the environment
and send the signals. One test starts torchrun itself, if it is installed.
"""

import contextlib
import os
import pathlib
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest

import attack

STEPS = 300
EVERY_STEPS = 25
PEER_IS_GONE = 4
# Ranks sum in another order when their number changes.
TOLERANCE = 1e-3


def free_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def torchrun_environment(rank, world_size, restarts, port):
    """The variables that an agent with one rank sets, of those that we read,
    with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 (docs/distributed.md)."""
    return {"RANK": rank, "WORLD_SIZE": world_size, "LOCAL_RANK": 0,
            "LOCAL_WORLD_SIZE": 1, "MASTER_ADDR": "localhost",
            "MASTER_PORT": port, "TORCHELASTIC_RESTART_COUNT": restarts,
            "TORCHELASTIC_USE_AGENT_STORE": "False"}


def slurm_environment(rank, world_size, restarts):
    return {"SLURM_PROCID": rank, "SLURM_NTASKS": world_size,
            "SLURM_LOCALID": rank, "SLURM_NNODES": 1,
            "SLURM_JOB_ID": os.getpid(), "SLURM_STEP_NODELIST": "localhost",
            "SLURM_RESTART_COUNT": restarts}


class SlowVerification:
    """Two ranks that resume, of which rank 1 stops in its warning about the
    newest checkpoint, as if the next one that it verifies were on a slow disk:
    its stderr is the full pipe that `reader` reads."""

    def __init__(self, test):
        self.run_folder = test.folder / "slow"
        for rank in test.agents(self.run_folder, [0, 0]):
            test.wait(rank, attack.DONE)
        newest = attack.checkpoints_of(self.run_folder)[STEPS]
        (newest / "state.json").write_text("damaged")
        self.reader, full_pipe = os.pipe()
        os.set_blocking(full_pipe, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(full_pipe, bytes(select.PIPE_BUF))
        os.set_blocking(full_pipe, True)
        port = free_port()
        self.ranks = [
            test.start(self.run_folder,
                       torchrun_environment(rank, 2, 0, port), stderr=stderr)
            for rank, stderr in enumerate((subprocess.PIPE, full_pipe))]
        self.begun = time.monotonic()


class RestartTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")))
        cls.tokens = attack.prepare_tokens(cls.folder)
        cls.uninterrupted = cls.folder / "uninterrupted"
        cls.wait(cls, cls.start(cls, cls.uninterrupted, {}), attack.DONE)
        cls.slow = None

    @classmethod
    def tearDownClass(cls):
        for rank in cls.slow.ranks if cls.slow else ():
            rank.kill()  # unless its test has ended it
            rank.wait()

    def setUp(self):
        # It mostly waits: the other tests run meanwhile, before its own in the
        # order of names.
        if self.slow is None:
            type(self).slow = SlowVerification(self)

    def start(self, run_folder, variables, launcher=(), stderr=subprocess.PIPE, **changes):
        """Starts a rank; with `launcher`, that."""
        command = attack.toy_train(
            self.tokens, training__steps=STEPS, training__eval_every_steps=10**6,
            checkpoint__every_steps=EVERY_STEPS, **changes)
        if run_folder is not None:
            command.append(f"--out={run_folder}")
        return subprocess.Popen(
            [*launcher, *map(str, command)], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=stderr, text=True,
            env={**attack.environment(),
                 **{name: str(value) for name, value in variables.items()}})

    def wait(self, process, code):
        """Waits until the process ends with `code`; returns its stderr."""
        try:
            _, stderr = process.communicate(timeout=attack.TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        assert process.returncode == code, (process.returncode, stderr)
        return stderr

    def await_step(self, run_folder, step, processes=()):
        """Waits until there is a checkpoint of `step` or later."""
        deadline = time.monotonic() + attack.TIMEOUT_S
        while max(attack.checkpoints_of(run_folder), default=0) < step:
            self.assertTrue(all(p.poll() is None for p in processes), "a rank ended")
            self.assertLess(time.monotonic(), deadline, f"no step {step}")
            time.sleep(0.01)

    def newest(self, run_folder):
        return max(attack.checkpoints_of(run_folder))

    def check_run(self, run_folder, resumed, world_sizes):
        """Checks that the run equals the uninterrupted one, except for rounding,
        that it resumed after the steps `resumed`, and its numbers of ranks."""
        records = attack.read_log(run_folder)
        starts = [record for record in records if record["type"] in ("run", "resume")]
        self.assertEqual([start["device"]["world_size"] for start in starts], world_sizes)
        self.assertEqual([start["step"] for start in starts[1:]], resumed)
        for start in starts[1:]:
            first = records[records.index(start) + 1]
            self.assertEqual((first["type"], first["step"]), ("step", start["step"] + 1))
        steps = [r for r in attack.effective_log(run_folder) if r["type"] == "step"]
        expected = [r for r in attack.effective_log(self.uninterrupted)
                    if r["type"] == "step"]
        self.assertEqual([s["step"] for s in steps], list(range(1, STEPS + 1)))
        for step, want in zip(steps, expected):
            self.assertAlmostEqual(step["loss"], want["loss"],
                                   delta=TOLERANCE * want["loss"], msg=step)
        # The rates are those of the global batch.
        tokens = {round(r["tokens_per_s"] * r["step_ms"] / 1000)
                  for r in records if r["type"] == "step"}
        self.assertEqual(tokens, {4 * 16})
        self.assertEqual(self.newest(run_folder), STEPS)

    def agents(self, run_folder, restarts, **changes):
        """A rank for each agent, which has counted that many restarts."""
        port = free_port()
        return [self.start(run_folder,
                           torchrun_environment(rank, len(restarts), count, port), **changes)
                for rank, count in enumerate(restarts)]

    def test_an_agent_of_torchrun_dies_and_another_joins(self):
        for dead, zero in ((1, 0), (0, 1)):
            with self.subTest(dead=dead, zero=zero):
                run_folder = self.folder / f"dead_{dead}"
                ranks = self.agents(run_folder, [0, 0], layout__zero=zero)
                self.await_step(run_folder, EVERY_STEPS, ranks)
                ranks[dead].kill()
                self.wait(ranks[dead], -signal.SIGKILL)
                self.wait(ranks[1 - dead], PEER_IS_GONE)
                alone = self.newest(run_folder)
                [rank] = self.agents(run_folder, [1], layout__zero=zero)
                self.await_step(run_folder, alone + EVERY_STEPS, [rank])
                # So that the new agent's rank can take part.
                rank.terminate()
                self.wait(rank, 128 + signal.SIGTERM)
                joined = self.newest(run_folder)
                for rank in self.agents(run_folder, [1, 0], layout__zero=zero):
                    self.wait(rank, attack.DONE)
                self.check_run(run_folder, [alone, joined], [2, 1, 2])

    def test_a_restart_needs_the_runs_folder(self):
        [rank] = self.agents(None, [1])
        self.assertIn("torchrun has restarted this run (restart 1), but --out is not set",
                      self.wait(rank, attack.USER_ERROR))

    def test_a_requeued_job_resumes_with_fewer_tasks(self):
        for signo in (signal.SIGUSR1, signal.SIGTERM):
            with self.subTest(signo=signo):
                run_folder = self.folder / signo.name
                ranks = [self.start(run_folder, slurm_environment(rank, 2, 0))
                         for rank in range(2)]
                self.await_step(run_folder, EVERY_STEPS, ranks)
                for rank in ranks:
                    rank.send_signal(signo)
                for rank in ranks:
                    self.wait(rank, 128 + signo)
                saved = self.newest(run_folder)
                self.assertEqual(attack.effective_log(run_folder)[-1]["step"], saved)
                self.wait(self.start(run_folder, slurm_environment(0, 1, 1)), attack.DONE)
                self.check_run(run_folder, [saved], [2, 1])

    @unittest.skipUnless(shutil.which("torchrun"), "torchrun is not installed")
    def test_torchrun_restarts_the_agent_that_is_left(self):
        run_folder, port = self.folder / "torchrun", free_port()
        torchrun = ["torchrun", "--no-python", "--nnodes=1:2", "--nproc-per-node=1",
                    "--max-restarts=3", "--rdzv-backend=c10d",
                    f"--rdzv-endpoint=localhost:{port}", "--local-addr=localhost",
                    "--rdzv-conf=last_call_timeout=5"]
        agents = []
        for _ in range(2):
            agents.append(self.start(
                run_folder, {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": 1}, torchrun))
            time.sleep(2)  # the first agent serves the rendezvous
        self.await_step(run_folder, EVERY_STEPS, agents)
        pid = agents[1].pid
        ranks = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for process in (pid, *map(int, ranks)):
            os.kill(process, signal.SIGKILL)
        self.wait(agents[1], -signal.SIGKILL)
        alone = self.newest(run_folder)
        self.wait(agents[0], attack.DONE)
        self.check_run(run_folder, [alone], [2, 1])

    def test_verification_may_be_slow(self):
        slow = self.slow
        # Ranks wait 20 s to meet.
        time.sleep(max(0, slow.begun + 25 - time.monotonic()))
        self.assertIsNone(slow.ranks[0].poll(), "ended")
        os.read(slow.reader, 1 << 20)
        for rank in slow.ranks:
            self.wait(rank, attack.DONE)
        self.assertIn(b"skipping checkpoint", os.read(slow.reader, 1 << 20))
        self.check_run(slow.run_folder, [STEPS - EVERY_STEPS], [2, 2])


if __name__ == "__main__":
    unittest.main()

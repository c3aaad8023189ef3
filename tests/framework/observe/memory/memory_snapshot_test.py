"""Reads what PickleWriter and PickleSnapshot() write as Python does."""

import pathlib
import pickle
import pickletools
import subprocess
import sys
import tempfile
import unittest

PROGRAM = pathlib.Path(sys.argv.pop(1)).resolve()

# What MemoryViz.js, the program of pytorch.org/memory_viz, reads.
KNOWN_OPCODES = {
    "APPEND", "APPENDS", "BINFLOAT", "BINGET", "BININT", "BININT1", "BININT2",
    "BINPUT", "BINUNICODE", "DICT", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE",
    "FRAME", "LIST", "LONG1", "LONG_BINGET", "LONG_BINPUT", "MARK", "MEMOIZE",
    "NEWFALSE", "NEWTRUE", "NONE", "PROTO", "SETITEM", "SETITEMS",
    "SHORT_BINUNICODE", "STOP", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3",
}
BASE = 0x7F0000000000


class MemorySnapshotTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([PROGRAM, folder], check=True)
            cls.files = {path.stem: path.read_bytes()
                         for path in pathlib.Path(folder).iterdir()}

    def test_every_kind_of_value_comes_back(self):
        values = pickle.loads(self.files["values"])
        shared = values[-1]
        self.assertEqual(values, [
            0, -1, 255, 2**31 - 1, 2**31, -2**31, -2**31 - 1, 0x7F1234567890,
            2**63 - 1, -2**63, True, False, "", "plain", "plain", "café",
            (1, 2), {"plain": []}, []])
        self.assertIs(values[-2]["plain"], shared)

    def test_only_opcodes_that_memory_viz_reads(self):
        for name, data in self.files.items():
            used = {op.name for op, _, _ in pickletools.genops(data)}
            self.assertLessEqual(used, KNOWN_OPCODES, name)

    def test_the_snapshot_has_the_form_of_torch_cuda_memory(self):
        snapshot = pickle.loads(self.files["snapshot"])
        self.assertEqual(sorted(snapshot),
                         ["allocator_settings", "device_traces", "segments"])
        self.assertEqual(snapshot["allocator_settings"], {
            "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False",
            "expandable_segments": False})
        frames = [{"name": "sdpa", "filename": "op", "line": 7},
                  {"name": "attention", "filename": "phase", "line": 7}]
        [segment] = snapshot["segments"]
        blocks = segment.pop("blocks")
        self.assertEqual(segment, {
            "device": 0, "address": BASE, "total_size": 20 << 20,
            "allocated_size": 1024, "active_size": 1536,
            "requested_size": 1000, "stream": 0x5500, "segment_type": "large",
            "segment_pool_id": (0, 0), "is_expandable": False, "frames": []})
        self.assertEqual(blocks, [
            {"address": BASE, "size": 1024, "requested_size": 1000,
             "state": "active_allocated", "frames": frames},
            {"address": BASE + 1024, "size": 512, "requested_size": 512,
             "state": "active_pending_free", "frames": []},
            {"address": BASE + 1536, "size": (20 << 20) - 1536,
             "requested_size": 0, "state": "inactive", "frames": []}])
        trace, other_gpu = snapshot["device_traces"]
        self.assertEqual(other_gpu, [])
        self.assertEqual([entry["action"] for entry in trace],
                         ["segment_alloc", "alloc", "alloc", "free_requested",
                          "oom", "snapshot"])
        self.assertEqual(trace[1], {
            "action": "alloc", "addr": BASE, "size": 1000, "stream": 0x5500,
            "time_us": 1_700_000_000_000_000, "frames": frames})
        self.assertEqual(trace[4]["device_free"], 4096)
        self.assertNotIn("addr", trace[4])
        self.assertEqual(trace[5]["frames"], [])


if __name__ == "__main__":
    unittest.main()

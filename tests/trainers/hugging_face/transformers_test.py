"""Export and import next to Hugging Face's transformers.

Random small models of each family: the same logits and the same losses of a
training run on both sides, byte-identical weights after a round trip. Needs a
Python with torch, transformers and safetensors: CONTRIBUTING.md says how to
make one, and where this test looks for it.
"""

import importlib.util
import json
import os
import pathlib
import pwd
import subprocess
import sys
import tempfile
import unittest
from xml.sax import saxutils

PYTHON = "TESSERA_TRANSFORMERS_PYTHON"
DEFAULT_PYTHON = ".cache/tessera/transformers/bin/python"


def skip(reason):
    """Ends the program. Bazel would count a test without a report as passed."""
    print("skipped:", reason)
    if "XML_OUTPUT_FILE" in os.environ:
        pathlib.Path(os.environ["XML_OUTPUT_FILE"]).write_text(
            "<testsuites><testsuite name='transformers'><testcase "
            "name='transformers'><skipped message="
            f"{saxutils.quoteattr(reason)}/></testcase></testsuite>"
            "</testsuites>")
    sys.exit(0)


try:
    import numpy
    import torch
    import transformers
    from safetensors import safe_open
except ImportError as error:
    home = pwd.getpwuid(os.getuid()).pw_dir
    python = os.environ.get(PYTHON, os.path.join(home, DEFAULT_PYTHON))
    if sys.executable == python:
        sys.exit(f"{python}: {error}")
    if not os.path.exists(python):
        if PYTHON in os.environ:
            sys.exit(f"{PYTHON}: there is no {python}")
        skip(f"needs transformers in {python}, or in ${PYTHON}")
    os.execv(python, [python, *sys.argv])

TRAIN = pathlib.Path("trainers/train").resolve()
EXPORT = pathlib.Path("trainers/export").resolve()
GENERATE = pathlib.Path("trainers/generate").resolve()
IMPORT = pathlib.Path("trainers/import").resolve()
PREPARE = pathlib.Path("trainers/prepare_data").resolve()
LOGITS = pathlib.Path("tests/trainers/hugging_face/print_logits").resolve()

CONTEXT = 64
VOCAB = 300
STEPS = 50
BATCH = 4
LEARNING_RATE = 3e-3
# Where a gradient is as small as its rounding, AdamW's default of 1e-8 makes
# large steps of it: FP32 and FP64 of transformers itself then differ by 1e-3.
ADAM_EPS = 1e-6

COMMON = dict(vocab_size=VOCAB, hidden_size=48, intermediate_size=80,
              num_hidden_layers=3, num_attention_heads=4,
              num_key_value_heads=2, head_dim=16,
              max_position_embeddings=CONTEXT, bos_token_id=None,
              eos_token_id=None, pad_token_id=None, tie_word_embeddings=False)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0,
              high_freq_factor=4.0, original_max_position_embeddings=32)
SLIDING, FULL = "sliding_attention", "full_attention"
# Every family, with what is particular about it.
MODELS = {
    "llama": dict(model_type="llama", rope_theta=100.0, rope_scaling=LLAMA3),
    "llama_tied": dict(model_type="llama", tie_word_embeddings=True,
                       rms_norm_eps=1e-3),
    "mistral": dict(model_type="mistral", sliding_window=7),
    "mistral_full": dict(model_type="mistral", sliding_window=None),
    "qwen3": dict(model_type="qwen3", head_dim=32, rope_theta=1e6),
    "qwen3_windows": dict(
        model_type="qwen3", use_sliding_window=True, sliding_window=9,
        max_window_layers=1, layer_types=[FULL, SLIDING, SLIDING]),
    "olmo2": dict(model_type="olmo2", rms_norm_eps=1e-6),
}
# The same families as Tessera's own configs, with its INTERLEAVED RoPE.
CONFIGS = {
    "llama": "rope_scaling { factor: 8 original_context_length: 32 }",
    "mistral": "attention_window { tokens: 7 } num_kv_heads: 4",
    "qwen3": "qk_norm: HEAD head_dim: 32 attention_window { tokens: 5 } "
             "attention_window {} tied_head: true",
    "olmo2": "qk_norm: PROJECTION norm_placement: AFTER rope_layout: HALVED",
    "olmo2_interleaved": "qk_norm: PROJECTION norm_placement: AFTER",
}


def our_tokens(checkpoint, ids, more):
    """The ids and the `more` most likely ones after them, by generate."""
    ids = ",".join(map(str, ids))
    printed = run(GENERATE, f"--checkpoint={checkpoint}", "--temperature=0",
                  f"--prompt_tokens={ids}", f"--max_tokens={more}")
    return [int(token) for token in printed.decode().split(",")]


def run(program, *arguments):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([program, *arguments], capture_output=True,
                          env=environment, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{program} {arguments}: {done.stderr.decode()}")
    return done.stdout


def random_model(name):
    """Weights such that every part of the model matters."""
    config = transformers.AutoConfig.for_model(**(COMMON | MODELS[name]))
    config._attn_implementation = "eager"
    torch.manual_seed(5)
    model = transformers.AutoModelForCausalLM.from_config(config).float()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.normal_(1, 0.2)
            else:
                parameter.normal_(0, 1.5 / parameter.shape[1] ** 0.5)
    return model.eval()


def load(folder, **options):
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", **options).eval()


torch.set_num_threads(1)  # small products are faster so
IDS = torch.arange(CONTEXT).mul(7919).remainder(VOCAB)


def their_logits(model):
    with torch.no_grad():
        return model(IDS.unsqueeze(0)).logits[0]


def our_logits(folder):
    out = run(LOGITS, folder, ",".join(str(i) for i in IDS.tolist()))
    return torch.from_numpy(
        numpy.frombuffer(out, numpy.float32).copy()).view(CONTEXT, VOCAB)


def tensors(folder):
    """{name: (dtype, shape, bytes)} of all safetensors files of a folder."""
    found = {}
    for path in folder.glob("*.safetensors"):
        data = path.read_bytes()
        end = 8 + int.from_bytes(data[:8], "little")
        for name, entry in json.loads(data[8:end]).items():
            if name != "__metadata__":
                begin, until = entry["data_offsets"]
                found[name] = (entry["dtype"], entry["shape"],
                               data[end + begin:end + until])
    return found


def write_tokens(path):
    """A text that a model can learn, as uint16."""
    noise = numpy.random.default_rng(3).integers(0, 3, STEPS * BATCH * CONTEXT
                                                 + 1)
    tokens = numpy.zeros(noise.size, numpy.uint16)
    for i in range(1, noise.size):
        tokens[i] = (3 * int(tokens[i - 1]) + 1 + noise[i]) % VOCAB
    tokens.tofile(path)
    return tokens


def training_flags(tokens_file, steps):
    settings = {
        "data": f'{{ token_files {{ train: "{tokens_file}" format: NANOGPT }} '
                "shuffle: false validation_fraction: 0 }",
        "training": f"{{ device: CPU steps: {steps} batch_size: {BATCH} "
                    "eval_batches: 0 }",
        "optimizer": f"{{ adamw {{ lr: {LEARNING_RATE} "
                     f"eps: {ADAM_EPS} }} }}",
        "precision.mode": "FP32", "observe.log_every_steps": 1}
    return [f"--set={field}={value}" for field, value in settings.items()]


def our_losses(folder):
    records = [json.loads(line)
               for line in (folder / "run.jsonl").read_text().splitlines()]
    return [r["loss"] for r in records if r["type"] == "step"]


def their_losses(model, tokens):
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE,
                                  eps=ADAM_EPS)
    losses = []
    for step in range(STEPS):
        first = step * BATCH * CONTEXT
        window = torch.from_numpy(
            tokens[first:first + BATCH * CONTEXT + 1].astype(numpy.int64))
        logits = model(window[:-1].view(BATCH, CONTEXT)).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1),
                                                 window[1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def write_documents(path, seed, count):
    """Sentences that a model can learn, as documents of different lengths."""
    rng = numpy.random.default_rng(seed)
    parts = (("the cat", "a dog", "every bird"), ("saw", "heard", "was near"),
             ("trees", "the sea", "two cars"), (".\n", ", and ", "! "))
    documents = [
        "".join(" ".join(part[rng.integers(len(part))] for part in parts[:3])
                + parts[3][rng.integers(3)]
                for _ in range(rng.integers(1, 60)))
        for _ in range(count)]
    path.write_text("<|endoftext|>".join(documents))
    return documents


def lm_eval_bits_per_byte(model, documents, folder):
    """The documents' bits per byte by lm-eval, which downloads nothing."""
    data, task = folder / "documents.jsonl", folder / "held_out.yaml"
    data.write_text("".join(json.dumps({"text": text}) + "\n"
                            for text in documents))
    task.write_text(
        "task: held_out\ndataset_path: json\ndataset_kwargs: "
        f"{{data_files: {{test: {data}}}}}\ntest_split: test\n"
        'output_type: loglikelihood_rolling\ndoc_to_text: ""\n'
        'doc_to_target: "{{text}}"\nmetric_list: [{metric: bits_per_byte}]\n')
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "cache")}
    run(sys.executable, "-m", "lm_eval", "run", "--model", "hf",
        "--model_args", f"pretrained={model},dtype=float32",
        "--device", "cpu", "--include_path", str(folder),
        "--tasks", "held_out", "--output_path", str(folder / "results"))
    (results,) = (folder / "results").rglob("results_*.json")
    return json.loads(results.read_text())["results"]["held_out"][
        "bits_per_byte,none"]


class TransformersTest(unittest.TestCase):

    def setUp(self):
        self.folder = pathlib.Path(
            tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")))

    def expect_near(self, name, what, ours, theirs, bound):
        largest = (ours - theirs).abs().max().item()
        print(f"{name:18} {what:34} largest difference {largest:.2e}")
        self.assertLess(largest, bound, f"{name}: {what}")

    def test_a_round_trip_keeps_logits_and_bytes(self):
        for name in MODELS:
            model = random_model(name)
            theirs, ours, back = (self.folder / f"{name}_{part}"
                                  for part in ("hf", "ours", "back"))
            model.save_pretrained(theirs, max_shard_size="100KB")
            self.assertGreater(len(list(theirs.glob("*.safetensors"))), 1)
            run(IMPORT, theirs, ours)
            expected = their_logits(model)
            for folder in (theirs, ours):
                self.expect_near(name, f"logits of {folder.name}",
                                 our_logits(folder), expected, 1e-4)
            run(EXPORT, ours, back)
            self.assertEqual(tensors(back), tensors(theirs), name)
            self.assertTrue(torch.equal(their_logits(load(back)), expected))
            # In one file, headers are equal, too.
            single = self.folder / f"{name}_single"
            model.save_pretrained(single)
            self.assertEqual(
                (back / "model.safetensors").read_bytes(),
                (single / "model.safetensors").read_bytes(), name)

    def test_our_models_run_in_transformers(self):
        tokens_file = self.folder / "tokens"
        write_tokens(tokens_file)
        (self.folder / "base.pbtxt").write_text(
            f"model {{ vocab_size: {VOCAB} num_layers: 3 d_model: 48 "
            "num_heads: 4 num_kv_heads: 2 head_dim: 16 d_ff: 80 "
            f"norm_eps: 1e-4 context_length: {CONTEXT} }}\n")
        for name, text in CONFIGS.items():
            config = self.folder / f"{name}.pbtxt"
            config.write_text(f'base: "base.pbtxt" model {{ {text} }}\n')
            ours, theirs = (self.folder / f"{name}_{part}"
                            for part in ("run", "export"))
            run(TRAIN, f"--config={config}", f"--out={ours}",
                *training_flags(tokens_file, 5))
            run(EXPORT, ours, theirs, "--max_file_mib=1")
            model = load(theirs)
            self.assertIn(name.split("_")[0], model.config.model_type)
            self.expect_near(name, "logits of its export", our_logits(ours),
                             their_logits(model), 1e-4)
            continued = model.generate(IDS[:5].unsqueeze(0), max_new_tokens=9,
                                       do_sample=False)[0].tolist()
            self.assertEqual(len(continued), 14)
            self.assertEqual(our_tokens(ours, IDS[:5].tolist(), 9), continued)
            for flag, dtype in (("BF16", torch.bfloat16),
                                ("FP16", torch.float16)):
                half = self.folder / f"{name}_{flag}"
                run(EXPORT, ours, half, f"--dtype={flag}")
                exact = dict(model.named_parameters())
                for key, value in load(half, dtype="auto").named_parameters():
                    self.assertEqual(value.dtype, dtype)
                    self.assertTrue(torch.equal(value, exact[key].to(dtype)))

    def test_continued_training_has_the_same_losses(self):
        tokens_file = self.folder / "tokens"
        tokens = write_tokens(tokens_file)
        for name in MODELS:
            model = random_model(name)
            theirs, imported, ours = (self.folder / f"{name}_{part}"
                                      for part in ("hf", "ours", "run"))
            model.save_pretrained(theirs)
            run(IMPORT, theirs, imported)
            run(TRAIN, f"--config={imported}/config.pbtxt",
                f"--set=checkpoint.init_from={theirs}", f"--out={ours}",
                *training_flags(tokens_file, STEPS))
            expected = torch.tensor(their_losses(model, tokens))
            self.assertLess(expected[-1], expected[0] - 0.5)
            self.expect_near(name, f"losses of {STEPS} steps",
                             torch.tensor(our_losses(ours)), expected, 1e-3)


    def test_lm_eval_reads_an_export_as_our_evaluation_reads_the_run(self):
        if importlib.util.find_spec("lm_eval") is None:
            self.skipTest(f"{sys.executable} has no lm_eval")
        train, held_out, tokens, held_tokens, ours, theirs = (
            self.folder / name for name in ("train.txt", "held_out.txt",
                                            "tokens", "held", "run", "hf"))
        write_documents(train, 1, 300)
        documents = write_documents(held_out, 2, 20)
        run(PREPARE, f"--input={train}", f"--out={tokens}",
            "--tokenizer=byte_level_bpe", f"--vocab_size={VOCAB}")
        run(PREPARE, f"--input={held_out}", f"--out={held_tokens}",
            f"--tokenizer={tokens}/tokenizer.json", "--validation_fraction=0")
        (self.folder / "run.pbtxt").write_text(
            f"model {{ vocab_size: {VOCAB} num_layers: 2 d_model: 64 "
            f"num_heads: 4 d_ff: 80 context_length: {CONTEXT} }}\n"
            f'data {{ token_files {{ train: "{tokens}" validation_sets {{ '
            f'name: "held_out" files: "{held_tokens}/train.tok" }} }} }}\n'
            "training { device: CPU steps: 60 batch_size: 8 }\n"
            f"optimizer {{ adamw {{ lr: {LEARNING_RATE} }} }}\n")
        run(TRAIN, f"--config={self.folder}/run.pbtxt", f"--out={ours}")
        run(EXPORT, ours, theirs)
        records = [json.loads(line)
                   for line in (ours / "run.jsonl").read_text().splitlines()]
        expected = [r["bits_per_byte"] for r in records
                    if r.get("set") == "held_out"][-1]
        got = lm_eval_bits_per_byte(theirs, documents, self.folder)
        print(f"bits per byte: {expected:.5f}, by lm-eval {got:.5f}")
        # Windows begin at other tokens: lm-eval reads documents one by one. A
        # wrong token at their beginning or end makes a tenth.
        self.assertLess(abs(got / expected - 1), 0.05)


if __name__ == "__main__":
    unittest.main(verbosity=2)

#include "framework/data/tokenize/tokenizer_bridge.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <unordered_map>
#include <vector>

#include "sentencepiece_processor.h"
#include "sentencepiece_trainer.h"

namespace {

using sentencepiece::SentencePieceProcessor;

const SentencePieceProcessor& Model(const void* model) {
  return *static_cast<const SentencePieceProcessor*>(model);
}

void Assign(const std::string& text, TesseraBytes* bytes) {
  bytes->size = text.size();
  bytes->data = static_cast<char*>(malloc(std::max<size_t>(text.size(), 1)));
  memcpy(bytes->data, text.data(), text.size());
}

class TextIterator : public sentencepiece::SentenceIterator {
 public:
  explicit TextIterator(TesseraTextSource source) : source_(source) { Next(); }

  bool done() const override { return done_; }
  void Next() override {
    size_t size = 0;
    const char* text = source_.next(source_.context, &size);
    done_ = text == nullptr;
    if (!done_) value_.assign(text, size);
  }
  const std::string& value() const override { return value_; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  const TesseraTextSource source_;
  bool done_ = false;
  std::string value_;
};

int Train(int vocab_size, TesseraTextSource text, TesseraBytes* result) {
  const std::unordered_map<std::string, std::string> options = {
      {"model_type", "bpe"},
      {"vocab_size", std::to_string(vocab_size)},
      // A short text may give fewer pieces.
      {"hard_vocab_limit", "false"},
      // Every byte has a piece, so every text can be encoded.
      {"byte_fallback", "true"},
      {"unk_id", "0"},
      {"eos_id", "1"},
      {"eos_piece", "<|endoftext|>"},
      {"bos_id", "-1"},
      {"pad_id", "-1"},
      // Lossless: no Unicode folding, no added or removed spaces. Runs of
      // spaces, such as the indentation of code, become pieces.
      {"normalization_rule_name", "identity"},
      {"add_dummy_prefix", "false"},
      {"remove_extra_whitespaces", "false"},
      {"allow_whitespace_only_pieces", "true"},
      {"minloglevel", "2"},
  };
  TextIterator iterator(text);
  std::string model;
  const auto status =
      sentencepiece::SentencePieceTrainer::Train(options, &iterator, &model);
  Assign(status.ok() ? model : status.ToString(), result);
  return status.ok() ? 0 : 1;
}

void* Load(const char* data, size_t size, TesseraBytes* error) {
  auto* model = new SentencePieceProcessor;
  const auto status = model->LoadFromSerializedProto({data, size});
  if (status.ok()) return model;
  Assign(status.ToString(), error);
  delete model;
  return nullptr;
}

void Unload(void* model) { delete static_cast<SentencePieceProcessor*>(model); }

int VocabSize(const void* model) { return Model(model).GetPieceSize(); }

int EosId(const void* model) { return Model(model).eos_id(); }

int ByteId(const void* model, uint8_t byte) {
  char name[8];
  snprintf(name, sizeof(name), "<0x%02X>", byte);
  const int id = Model(model).PieceToId(name);
  return Model(model).IsByte(id) ? id : -1;
}

void Piece(const void* model, int id, TesseraBytes* text) {
  const SentencePieceProcessor& processor = Model(model);
  std::string piece;
  if (processor.IsByte(id)) {
    const std::string name = processor.IdToPiece(id);  // "<0x0A>"
    piece = static_cast<char>(std::stoi(name.substr(3, 2), nullptr, 16));
  } else if (!processor.IsControl(id) && !processor.IsUnknown(id)) {
    static constexpr char kSpace[] = "\xe2\x96\x81";  // U+2581
    piece = processor.IdToPiece(id);
    for (size_t at = 0; (at = piece.find(kSpace, at)) != std::string::npos;) {
      piece.replace(at++, 3, " ");
    }
  }
  Assign(piece, text);
}

int64_t Encode(const void* model, const char* text, size_t size, int32_t* ids) {
  std::vector<int> encoded;
  if (!Model(model).Encode({text, size}, &encoded).ok()) return -1;
  if (encoded.size() > size) return -1;
  std::copy(encoded.begin(), encoded.end(), ids);
  return static_cast<int64_t>(encoded.size());
}

void Release(TesseraBytes* bytes) {
  free(bytes->data);
  *bytes = {nullptr, 0};
}

}  // namespace

const TesseraTokenizerBridge* GetTesseraTokenizerBridge() {
  static constexpr TesseraTokenizerBridge kBridge = {
      .train = Train,
      .load = Load,
      .unload = Unload,
      .vocab_size = VocabSize,
      .eos_id = EosId,
      .byte_id = ByteId,
      .piece = Piece,
      .encode = Encode,
      .release = Release,
  };
  return &kBridge;
}

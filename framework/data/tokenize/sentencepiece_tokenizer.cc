#include "framework/data/tokenize/sentencepiece_tokenizer.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "framework/base/runtime_files.h"
#include "framework/base/status_macros.h"
#include "framework/data/tokenize/tokenizer_bridge.h"
#include "framework/data/tokenize/utf8.h"

namespace tessera {
namespace {

using Bridge = TesseraTokenizerBridge;

// All bytes, the unknown piece and the end of a document.
constexpr int kFixedPieces = 256 + 2;

// The sanitizers do not support RTLD_DEEPBIND. Their builds omit the flag and
// rely on SentencePiece not using any of the few symbols that the program
// exports.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kOpenMode = RTLD_NOW | RTLD_LOCAL;
#else
constexpr int kOpenMode = RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND;
#endif

absl::StatusOr<const Bridge*> OpenBridge() {
  ASSIGN_OR_RETURN(
      const std::string path,
      FindRuntimeFile("framework/data/tokenize/libtokenizer_bridge.so"));
  void* library = dlopen(path.c_str(), kOpenMode);
  if (library == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "cannot open the BPE tokenizer: ", dlerror(),
        "; install SentencePiece (libsentencepiece0) or use the tokenizer "
        "BYTES"));
  }
  auto* get = reinterpret_cast<decltype(&GetTesseraTokenizerBridge)>(
      dlsym(library, "GetTesseraTokenizerBridge"));
  if (get == nullptr) {
    return absl::InternalError(
        absl::StrCat(path, " is not a tokenizer bridge"));
  }
  return get();
}

// Opened in the first call and never closed, because models use its memory.
absl::StatusOr<const Bridge*> GetBridge() {
  static const absl::StatusOr<const Bridge*> bridge = OpenBridge();
  return bridge;
}

std::string Take(const Bridge& bridge, TesseraBytes* bytes) {
  std::string text(bytes->data, bytes->size);
  bridge.release(bytes);
  return text;
}

// The length of the prefix of `text` that SentencePiece reproduces exactly.
size_t CleanPrefix(absl::string_view text) {
  static constexpr absl::string_view kSpacePiece = "\xe2\x96\x81";  // U+2581
  // U+2585; the trainer skips sentences that contain it.
  static constexpr absl::string_view kUnknownPiece = "\xe2\x96\x85";
  size_t end = 0;
  while (end < text.size()) {
    const absl::string_view rest = text.substr(end);
    const auto first = static_cast<uint8_t>(rest[0]);
    if (first < 0x20) break;
    if (first < 0x80) {
      ++end;
      continue;
    }
    const int bytes = Utf8CharacterBytes(rest);
    const absl::string_view character = rest.substr(0, bytes);
    if (bytes == 0 || character == kSpacePiece || character == kUnknownPiece) {
      break;
    }
    end += bytes;
  }
  return end;
}

class BpeTokenizer : public Tokenizer {
 public:
  BpeTokenizer(const Bridge* bridge, void* model, absl::string_view serialized)
      : bridge_(bridge), model_(model), serialized_(serialized) {
    for (int id = 0; id < bridge_->vocab_size(model_); ++id) {
      TesseraBytes text;
      bridge_->piece(model_, id, &text);
      pieces_.push_back(Take(*bridge_, &text));
    }
    for (int byte = 0; byte < 256; ++byte) {
      byte_ids_[byte] = bridge_->byte_id(model_, byte);
    }
  }
  ~BpeTokenizer() override { bridge_->unload(model_); }

  // Whether the model has all bytes and an end of document, as ours do.
  bool IsComplete() const {
    return eos_id() >= 0 &&
           std::find(byte_ids_.begin(), byte_ids_.end(), -1) == byte_ids_.end();
  }

  absl::StatusOr<std::vector<int32_t>> Encode(
      absl::string_view text) const override;
  absl::StatusOr<std::string> Decode(
      absl::Span<const int32_t> ids) const override;

  TokenizerKind kind() const override { return TokenizerKind::kBpe; }
  int64_t vocab_size() const override {
    return static_cast<int64_t>(pieces_.size());
  }
  int32_t eos_id() const override { return bridge_->eos_id(model_); }
  std::string Serialize() const override { return serialized_; }

 private:
  // The location of a word's ids in the ids of the text so far.
  struct Place {
    size_t begin;
    size_t count;
  };
  using WordCache = absl::flat_hash_map<absl::string_view, Place>;

  bool EncodeClean(absl::string_view text, WordCache* cache,
                   std::vector<int32_t>* ids) const;

  const Bridge* const bridge_;
  void* const model_;
  const std::string serialized_;
  std::vector<std::string> pieces_;  // bytes by id
  std::array<int32_t, 256> byte_ids_;
};

// No piece has a space after another character (the trainer splits words
// there), so no merge crosses such a position: words with their leading spaces
// can be encoded separately, and the ids of repeated words are copied.
bool BpeTokenizer::EncodeClean(absl::string_view text, WordCache* cache,
                               std::vector<int32_t>* ids) const {
  while (!text.empty()) {
    const size_t word_begin =
        std::min(text.find_first_not_of(' '), text.size());
    const size_t word_end = std::min(text.find(' ', word_begin), text.size());
    const absl::string_view word = text.substr(0, word_end);
    text.remove_prefix(word_end);
    const size_t begin = ids->size();
    const auto [entry, is_new] = cache->try_emplace(word, Place{begin, 0});
    if (!is_new) {
      ids->resize(begin + entry->second.count);
      std::copy_n(ids->begin() + entry->second.begin, entry->second.count,
                  ids->begin() + begin);
      continue;
    }
    ids->resize(begin + word.size());
    const int64_t count =
        bridge_->encode(model_, word.data(), word.size(), ids->data() + begin);
    if (count < 0) return false;
    ids->resize(begin + count);
    entry->second.count = count;
  }
  return true;
}

absl::StatusOr<std::vector<int32_t>> BpeTokenizer::Encode(
    absl::string_view text) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3);  // C++ has three to four bytes per token
  WordCache cache;
  while (!text.empty()) {
    const size_t clean = CleanPrefix(text);
    if (!EncodeClean(text.substr(0, clean), &cache, &ids)) {
      return absl::InternalError("SentencePiece cannot encode valid UTF-8");
    }
    text.remove_prefix(clean);
    if (text.empty()) break;
    ids.push_back(byte_ids_[static_cast<uint8_t>(text[0])]);
    text.remove_prefix(1);
  }
  return ids;
}

absl::StatusOr<std::string> BpeTokenizer::Decode(
    absl::Span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab_size()) {
      return absl::OutOfRangeError(absl::StrCat(
          "token ", id, " is outside the tokenizer's vocabulary of ",
          vocab_size()));
    }
    text += pieces_[id];
  }
  return text;
}

// Translates the trainer's error. If the vocabulary cannot hold the text's
// characters (without the rarest 0.05%), SentencePiece names its source line
// and options that we do not have.
absl::Status TrainingError(int vocab_size, absl::string_view error,
                           absl::string_view advice) {
  const std::pair<absl::string_view, absl::string_view> around =
      absl::StrSplit(error, absl::MaxSplits("smaller than required_chars.", 1));
  const std::pair<absl::string_view, absl::string_view> sizes =
      absl::StrSplit(around.second, absl::MaxSplits(" vs ", 1));
  int needed = 0;
  if (!absl::SimpleAtoi(sizes.second.substr(0, sizes.second.find('.')),
                        &needed)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cannot learn ", vocab_size, " pieces from this text: ", error));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "a BPE vocabulary of ", vocab_size, " is too small for this text: its ",
      needed - kFixedPieces, " distinct characters, 256 bytes and 2 control ",
      "pieces take ", needed, "; ", advice));
}

// The length of the sentence for training at the start of a clean stretch: all
// of it, or up to the spaces before a word, where the trainer splits anyway,
// else up to a character.
size_t SentenceBytes(absl::string_view clean) {
  // SentencePiece skips longer sentences (its max_sentence_length).
  constexpr size_t kMaxBytes = 4192;
  if (clean.size() <= kMaxBytes) return clean.size();
  const size_t space = clean.rfind(' ', kMaxBytes);
  if (space != absl::string_view::npos) {
    const size_t word_end = clean.find_last_not_of(' ', space);
    if (word_end != absl::string_view::npos) return word_end + 1;
  }
  size_t cut = kMaxBytes;
  while ((clean[cut] & 0xc0) == 0x80) --cut;
  return cut;
}

// Passes the sentences in a TextStream's clean stretches to the bridge.
struct Sentences {
  const TextStream& stream;
  absl::string_view text;   // the rest of the stream's last text
  absl::string_view clean;  // the rest of the stretch before it
  bool is_empty = true;     // so far

  static const char* Next(void* context, size_t* size) {
    auto& self = *static_cast<Sentences*>(context);
    while (self.clean.empty()) {
      if (self.text.empty()) {
        const std::optional<absl::string_view> text = self.stream();
        if (!text.has_value()) return nullptr;
        self.text = *text;
      }
      self.clean = self.text.substr(0, CleanPrefix(self.text));
      self.text.remove_prefix(
          std::min(self.clean.size() + 1, self.text.size()));
    }
    self.is_empty = false;
    *size = SentenceBytes(self.clean);
    const char* data = self.clean.data();
    self.clean.remove_prefix(*size);
    return data;
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> TrainBpe(int vocab_size,
                                                    const TextStream& text,
                                                    absl::string_view advice) {
  if (vocab_size < kMinBpeVocabularySize) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a BPE vocabulary of ", vocab_size,
        " has too little room besides its 256 bytes; use at least ",
        kMinBpeVocabularySize, ", or the tokenizer BYTES"));
  }
  ASSIGN_OR_RETURN(const Bridge* bridge, GetBridge());
  Sentences source{text, {}, {}};
  TesseraBytes result = {};
  const int code =
      bridge->train(vocab_size, {&Sentences::Next, &source}, &result);
  const std::string model = Take(*bridge, &result);
  if (source.is_empty) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cannot learn ", vocab_size, " pieces from this text: it has nothing ",
        "but control characters and bytes that are not UTF-8; use the ",
        "tokenizer BYTES (--tokenizer=bytes of prepare_data)"));
  }
  if (code != 0) {
    return TrainingError(vocab_size, model, advice);
  }
  return LoadBpe(model);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadBpe(
    absl::string_view serialized) {
  ASSIGN_OR_RETURN(const Bridge* bridge, GetBridge());
  TesseraBytes error = {};
  void* model = bridge->load(serialized.data(), serialized.size(), &error);
  if (model == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("not a SentencePiece model: ", Take(*bridge, &error)));
  }
  auto tokenizer = std::make_unique<BpeTokenizer>(bridge, model, serialized);
  if (!tokenizer->IsComplete()) {
    return absl::InvalidArgumentError(
        "the SentencePiece model has no byte pieces or no end-of-sentence "
        "piece; learn it with --byte_fallback");
  }
  return tokenizer;
}

}  // namespace tessera

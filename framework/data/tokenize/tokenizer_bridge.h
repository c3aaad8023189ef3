#ifndef FRAMEWORK_DATA_TOKENIZE_TOKENIZER_BRIDGE_H_
#define FRAMEWORK_DATA_TOKENIZE_TOKENIZER_BRIDGE_H_

#include <stddef.h>
#include <stdint.h>

// The C border between this program and SentencePiece.
//
// libsentencepiece.so exports its own, older google::protobuf and absl. In one
// symbol scope with ours each would run the other's functions on its own
// objects. So SentencePiece is linked by libtokenizer_bridge.so alone, which
// the program opens with a scope of its own (RTLD_LOCAL | RTLD_DEEPBIND), and
// nothing but C types crosses. No function throws.
extern "C" {

// Bytes that the bridge allocated and its `release` frees.
struct TesseraBytes {
  char* data;
  size_t size;
};

struct TesseraTextSource {
  // The next stretch of UTF-8 text, valid until the next call; null ends.
  const char* (*next)(void* context, size_t* size);
  void* context;
};

struct TesseraTokenizerBridge {
  // Learns a BPE model. 0, and its serialized form in *result; else the error.
  int (*train)(int vocab_size, struct TesseraTextSource text,
               struct TesseraBytes* result);

  // Null, and the error in *error, where `data` is no model.
  void* (*load)(const char* data, size_t size, struct TesseraBytes* error);
  void (*unload)(void* model);

  int (*vocab_size)(const void* model);
  int (*eos_id)(const void* model);  // -1: none
  // Of the piece that stands for one byte; -1: none.
  int (*byte_id)(const void* model, uint8_t byte);
  // The text that an id stands for; empty for control pieces.
  void (*piece)(const void* model, int id, struct TesseraBytes* text);

  // Writes at most `size` ids and returns how many; -1 on failure. Thread-safe.
  int64_t (*encode)(const void* model, const char* text, size_t size,
                    int32_t* ids);

  void (*release)(struct TesseraBytes* bytes);
};

// The one exported symbol.
const struct TesseraTokenizerBridge* GetTesseraTokenizerBridge(void);

}  // extern "C"

#endif  // FRAMEWORK_DATA_TOKENIZE_TOKENIZER_BRIDGE_H_

#ifndef FRAMEWORK_DATA_TOKENIZE_TOKENIZER_BRIDGE_H_
#define FRAMEWORK_DATA_TOKENIZE_TOKENIZER_BRIDGE_H_

#include <stddef.h>
#include <stdint.h>

// The C interface between this program and SentencePiece.
//
// libsentencepiece.so exports its own, older google::protobuf and absl. In a
// common symbol scope, the two versions would run on each other's objects. So
// only libtokenizer_bridge.so links SentencePiece. The program opens it in a
// separate scope (RTLD_LOCAL | RTLD_DEEPBIND), and the interface uses only C
// types. No function throws.
extern "C" {

// Bytes that the bridge has allocated; `release` frees them.
struct TesseraBytes {
  char* data;
  size_t size;
};

struct TesseraTextSource {
  // Returns the next piece of UTF-8 text, valid until the next call; null at
  // the end.
  const char* (*next)(void* context, size_t* size);
  void* context;
};

struct TesseraTokenizerBridge {
  // Learns a BPE model. Returns 0 and the serialized model in *result, else
  // nonzero and the error.
  int (*train)(int vocab_size, struct TesseraTextSource text,
               struct TesseraBytes* result);

  // Returns null, and the error in *error, if `data` is not a model.
  void* (*load)(const char* data, size_t size, struct TesseraBytes* error);
  void (*unload)(void* model);

  int (*vocab_size)(const void* model);
  int (*eos_id)(const void* model);  // -1: none
  // The id of the piece for one byte; -1: none.
  int (*byte_id)(const void* model, uint8_t byte);
  // The text of an id; empty for control pieces.
  void (*piece)(const void* model, int id, struct TesseraBytes* text);

  // Writes at most `size` ids and returns their number; -1 on failure.
  // Thread-safe.
  int64_t (*encode)(const void* model, const char* text, size_t size,
                    int32_t* ids);

  void (*release)(struct TesseraBytes* bytes);
};

// The only exported symbol.
const struct TesseraTokenizerBridge* GetTesseraTokenizerBridge(void);

}  // extern "C"

#endif  // FRAMEWORK_DATA_TOKENIZE_TOKENIZER_BRIDGE_H_

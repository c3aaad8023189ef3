#ifndef TESTS_MODELS_SIZED_MODEL_H_
#define TESTS_MODELS_SIZED_MODEL_H_

#include <cstdint>

#include "models/model_shape.h"

namespace tessera {

// A model of 10,000 words and 512 tokens of context.
inline ModelShape Sized(int64_t d_model, int64_t d_ff, int64_t layers,
                        int64_t heads) {
  return {.vocab = 10000,
          .layers = layers,
          .d_model = d_model,
          .heads = heads,
          .kv_heads = heads,
          .d_ff = d_ff,
          .context = 512};
}

}  // namespace tessera

#endif  // TESTS_MODELS_SIZED_MODEL_H_

#ifndef FRAMEWORK_DATA_DATASET_H_
#define FRAMEWORK_DATA_DATASET_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "framework/data/prepare/progress.h"
#include "framework/data/read/data_source.h"
#include "framework/data/tokenize/tokenizer.h"

namespace tessera {

struct DatasetOptions {
  int64_t context_length = 0;
  int64_t vocab_size = 0;  // the model's; every token must be below it
  uint64_t seed = 0;
  ProgressSink progress;  // the default text may be prepared first
};

// The tokens of a run, opened and checked; CreateDataset() (data_config.h)
// makes it.
struct Dataset {
  std::unique_ptr<DataSource> train;
  std::unique_ptr<DataSource> validation;  // null where nothing is held out
  std::unique_ptr<Tokenizer> tokenizer;    // null where the tokens have no text
  // Cross entropy of the validation tokens under the training tokens'
  // frequencies, in nats per token: what a model without context reaches.
  // Known for prepared text and synthetic tokens.
  std::optional<double> unigram_entropy;
  // Changes with the training tokens; a resumed run compares it.
  uint64_t fingerprint = 0;
};

}  // namespace tessera

#endif  // FRAMEWORK_DATA_DATASET_H_

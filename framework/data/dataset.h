#ifndef FRAMEWORK_DATA_DATASET_H_
#define FRAMEWORK_DATA_DATASET_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

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

// The tokens of a run, opened and checked. Created by CreateDataset()
// (data_config.h).
struct Dataset {
  std::unique_ptr<DataSource> train;
  std::unique_ptr<DataSource> validation;  // null if nothing is held out
  struct ValidationSet {
    std::string name;
    std::unique_ptr<DataSource> source;
  };
  std::vector<ValidationSet> validation_sets;  // TokenFiles::validation_sets
  std::unique_ptr<Tokenizer> tokenizer;  // null if the tokens are not text
  // Cross entropy of the validation tokens under the token frequencies of the
  // training split, in nats per token: the loss of a model that ignores
  // context. Known for prepared text and synthetic tokens.
  std::optional<double> unigram_entropy;
  // Hash of the training tokens and, if they are separate, of the places where
  // documents begin; compared when a run resumes.
  uint64_t fingerprint = 0;
  // Hash of the tokens in files that are read only for validation.
  uint64_t validation_fingerprint = 0;
};

}  // namespace tessera

#endif  // FRAMEWORK_DATA_DATASET_H_

#ifndef BENCH_STUDIES_STUDY_PAGE_H_
#define BENCH_STUDIES_STUDY_PAGE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "bench/studies/study_config.h"
#include "framework/observe/report/html_page.h"
#include "nlohmann/json.hpp"

namespace tessera {

// The study's tables as Markdown: what it measures, on which device and build,
// and a line for each cell. `records` as ReadResults() gives them; cells that
// have not run are missing, and those of a build before the last one are noted.
// `command` is what a user types to repeat it.
std::string StudyPage(const Study& study,
                      const std::vector<nlohmann::ordered_json>& records,
                      absl::string_view command);

// The same as a page with the study's charts, without the command.
HtmlPage StudyHtmlPage(const Study& study,
                       const std::vector<nlohmann::ordered_json>& records);

// FailedPrecondition if `folder` has no results, but a run, or a page that
// WriteStudyPage() would replace and that is no study's.
absl::Status CheckHoldsNothingElse(const std::string& folder);

// Writes StudyPage() to `folder`/README.md and StudyHtmlPage() to
// `folder`/index.html. What stands under the heading "## Reading" there is the
// reader's own text: it stays, above the tables.
absl::Status WriteStudyPage(const std::string& folder, const Study& study,
                            const std::vector<nlohmann::ordered_json>& records,
                            absl::string_view command);

}  // namespace tessera

#endif  // BENCH_STUDIES_STUDY_PAGE_H_

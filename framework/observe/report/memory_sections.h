#ifndef FRAMEWORK_OBSERVE_REPORT_MEMORY_SECTIONS_H_
#define FRAMEWORK_OBSERVE_REPORT_MEMORY_SECTIONS_H_

#include "framework/observe/report/html_page.h"
#include "framework/observe/report/run_records.h"

namespace tessera {

// What the device's memory held: the peak over the run and, if observe.memory
// was on, the last recorded step by phase and category, what it saved for its
// backward pass, its largest allocations, and a timeline of the step that has
// one. Empty without figures.
HtmlSection MemorySection(const RunRecords& run);

// The peaks of the last recorded steps, by category and phase. Empty unless
// both runs recorded their memory.
HtmlSection MemoryComparison(const RunRecords& a, const RunRecords& b);

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_REPORT_MEMORY_SECTIONS_H_

#ifndef FRAMEWORK_OBSERVE_REPORT_HTML_PAGE_H_
#define FRAMEWORK_OBSERVE_REPORT_HTML_PAGE_H_

#include <optional>
#include <string>
#include <vector>

namespace tessera {

// A web page of sections with text, charts and tables. All strings are plain
// text: RenderHtmlPage() escapes them.

struct ChartPoint {
  double x = 0;
  std::optional<double> y;  // absent or not finite: a gap
  std::string label;        // shown when the pointer is over it; may be empty
};

struct ChartSeries {
  std::string name;
  std::vector<ChartPoint> points;  // except of bars
  std::vector<double> values;      // of bars: one for each category, or NaN
  bool is_limit = false;           // drawn as a dashed line without points
  // Series of one color in several charts have the same number; without it, the
  // number is the series' place in its chart.
  std::optional<size_t> color;
};

struct Chart {
  enum class Kind {
    kLine,
    kArea,  // stacked steps: y holds until the next x; series share their x
    kScatter,
    kBars,            // vertical, stacked
    kGroupedBars,     // vertical, side by side
    kHorizontalBars,  // stacked
  };
  Kind kind = Kind::kLine;
  std::string title, x_title, y_title;
  bool log_x = false, log_y = false;    // log_x of kLine and kScatter
  bool from_zero = true;                // the axis of y, unless it is a log's
  std::vector<std::string> categories;  // of bars
  std::vector<ChartSeries> series;
};

struct TableCell {
  std::string text;
  std::optional<double> bar;  // in [0, 1]: a bar behind the text
  bool strong = false;
};

struct HtmlTable {
  std::string title;
  std::vector<std::string> columns;
  size_t text_columns = 1;  // the first N are text; the others are numbers
  std::vector<std::vector<TableCell>> rows;
  std::string note;  // below the table
};

// A figure that deserves large print.
struct Headline {
  std::string name, value;
};

struct HtmlSection {
  std::string title;
  std::vector<std::string> paragraphs;
  std::vector<Headline> headlines;
  std::string headlines_note;  // below the headlines
  std::vector<Chart> charts;
  std::vector<HtmlTable> tables;
  std::string folded_text;  // preformatted, shown on demand
};

struct HtmlPage {
  std::string title;
  std::string subtitle;
  std::vector<HtmlSection> sections;
};

// The page as one HTML file that loads nothing else: its content security
// policy forbids every request.
std::string RenderHtmlPage(const HtmlPage& page);

// A copy of at most about `most` points that keeps the lowest and the highest
// of each stretch, so that spikes stay visible.
std::vector<ChartPoint> ThinPoints(const std::vector<ChartPoint>& points,
                                   size_t most = 1000);

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_REPORT_HTML_PAGE_H_

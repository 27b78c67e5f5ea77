// Values as operators read them.
#ifndef SUPERVISOR_CLI_FORMAT_H_
#define SUPERVISOR_CLI_FORMAT_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/message.h"
#include "proto/baton/v1/types.pb.h"

namespace baton {

std::string FormatDuration(double seconds);  // "340ms", "12s", "3h05m"
std::string FormatAgo(double seconds);       // "12s ago"
std::string FormatMicroseconds(double us);   // "26us", "1.2ms"
std::string FormatBytes(uint64_t bytes);     // "16MiB"
// Registered memory: "16MiB", or "16MiB and 4 heaps of 64MiB" if shards have one.
std::string FormatBuffers(uint64_t buffer_bytes, uint32_t shards, uint64_t shard_heap_bytes);
std::string FormatTime(int64_t unix_micros);     // UTC, "2025-01-31T09:15:00.123456Z"
std::string FormatSeconds(int64_t unix_micros);  // the same without a fraction
std::string FormatBlackout(const v1::BlackoutSummary& summary);
std::string FormatState(v1::WorkerState state);
std::string FormatState(v1::ConnectionState state);
std::string FormatState(v1::UpgradePhase phase);
std::string FormatWorkerId(uint64_t id);                           // "-" for none
std::string FormatWorker(uint64_t id);                             // "worker 1", "nobody"
std::string FormatCount(uint64_t count, const std::string& what);  // "1 shard", "2 shards"
// "1.0 -> 1.1"; a program that has not attached yet has no version.
std::string FormatVersions(const v1::Upgrade& upgrade);
std::string FormatProgress(const v1::Upgrade& upgrade);  // "watching, 25s left"
std::string FormatElapsed(const v1::Upgrade& upgrade);   // "-" while it is under way
std::string FormatMove(double blackout_us);              // "-" for none
// Makes the names of services and workers safe for a terminal: they are not trusted.
std::string Printable(const std::string& text);
std::string FormatVersion(const v1::Version& version);
// Returns one object, with every field under its name in the .proto files. Without `whitespace` it
// is one line, without a newline.
std::string ToJson(const google::protobuf::Message& message, bool whitespace = false);

// Text on a terminal: wrapped, in colours, and aligned in tables with a header or lists of names
// with values.

// Breaks `text` between words into lines of at most `columns`; the last line has no newline. The
// first line begins at `column`, the others are indented by `indent`. A word that is longer than a
// line stays whole, and so does text in `backquotes`.
std::string Wrap(const std::string& text, size_t indent, size_t column, size_t columns);

// Returns the columns that `text`, valid UTF-8, takes: one for each character.
size_t WidthOf(const std::string& text);

// Colours of a terminal. They only repeat what words say.

enum class Colour { kNone, kGreen, kYellow, kRed };

// Returns `text` in that colour; for kNone `text` itself.
std::string Painted(const std::string& text, Colour colour);

// Returns the colour of a state in the words of FormatState() and others, with or without more
// text: "watching, 25s left", "bad: disk full". Green: nothing is to be done. Yellow: it passes, or
// waits for something. Red: something failed. kNone: the text is no state.
Colour ColourOf(std::string_view state);

struct TableStyle {
  bool wide = false;  // with columns for special interests
  bool headers = true;
  bool colour = false;  // paints states
  // The terminal's width. Long texts are wrapped to its columns; 0: there is none.
  size_t columns = 0;
  int rows = 0;
};

class Table {
 public:
  // The first characters of a title may be marks. '+': only wide tables have the column. Then '>':
  // it is aligned to the right, for numbers; or '!': it has states, which are painted. A last
  // column that is aligned to the left is wrapped if it does not fit.
  explicit Table(std::vector<std::string> titles, TableStyle style = {});

  // Adds a row with a cell for every column, shown or not. Missing cells are empty.
  void Add(std::initializer_list<absl::AlphaNum> row);
  void Add(std::vector<std::string> row);
  bool empty() const { return rows_.empty(); }
  void Print(std::ostream& out, const std::string& indent = "") const;

 private:
  struct Column {
    std::string title;
    bool right = false;
    bool state = false;
    bool shown = true;
  };
  using Row = std::vector<std::string>;

  std::vector<size_t> Widths() const;
  void PrintRow(std::ostream& out, const std::string& indent, const std::vector<size_t>& widths,
                const Row& row, bool title) const;

  const TableStyle style_;
  std::vector<Column> columns_;  // those that are shown
  std::vector<bool> shown_;      // of all
  std::vector<Row> rows_;        // of the columns that are shown
};

// Prints "Name:   value" lines, with the values aligned, and wrapped if they do not fit. The value
// of a name that begins with '!' is a state.
void PrintFields(std::ostream& out, const std::vector<std::pair<std::string, std::string>>& fields,
                 const TableStyle& style = {}, const std::string& indent = "");

}  // namespace baton

#endif  // SUPERVISOR_CLI_FORMAT_H_

#ifndef SUPERVISOR_CLI_TEXT_H_
#define SUPERVISOR_CLI_TEXT_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace baton {

// Breaks `text` between words into lines of at most `columns`, without an end of the last one. The
// first line begins at `column`, the others are indented by `indent`. A word that is longer than a
// line stays whole, as does what stands in `backquotes`.
std::string Wrap(const std::string& text, size_t indent, size_t column, size_t columns);

// The columns that `text`, valid UTF-8, takes: one for each character.
size_t WidthOf(const std::string& text);

// Colours of a terminal. They only repeat what words say.

enum class Colour { kNone, kGreen, kYellow, kRed };

// `text` in that colour; `text` itself for kNone.
std::string Painted(const std::string& text, Colour colour);

// The colour of a state as FormatState() and others write it, with or without what follows it:
// "watching, 25s left", "bad: disk full". Green: nothing is to be done. Yellow: it passes, or waits
// for something. Red: something failed. kNone for every other text.
Colour ColourOf(std::string_view state);

}  // namespace baton

#endif  // SUPERVISOR_CLI_TEXT_H_

// Colours of a terminal. They only repeat what words say.
#ifndef SUPERVISOR_CLI_PAINT_H_
#define SUPERVISOR_CLI_PAINT_H_

#include <string>
#include <string_view>

namespace baton {

enum class Colour { kNone, kGreen, kYellow, kRed };

// `text` in that colour; `text` itself for kNone.
std::string Painted(const std::string& text, Colour colour);

// The colour of a state as FormatState() and others write it, with or without what follows it:
// "watching, 25s left", "bad: disk full". Green: nothing is to be done. Yellow: it passes, or waits
// for something. Red: something failed. kNone for every other text.
Colour ColourOf(std::string_view state);

}  // namespace baton

#endif  // SUPERVISOR_CLI_PAINT_H_

#ifndef SUPERVISOR_CLI_WRAP_H_
#define SUPERVISOR_CLI_WRAP_H_

#include <cstddef>
#include <string>

namespace baton {

// Breaks `text` between words into lines of at most `columns`, without an end of the last one. The
// first line begins at `column`, the others are indented by `indent`. A word that is longer than a
// line stays whole, as does what stands in `backquotes`.
std::string Wrap(const std::string& text, size_t indent, size_t column, size_t columns);

// The columns that `text`, valid UTF-8, takes: one for each character.
size_t WidthOf(const std::string& text);

}  // namespace baton

#endif  // SUPERVISOR_CLI_WRAP_H_

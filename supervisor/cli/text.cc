#include "supervisor/cli/text.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace baton {
namespace {

// The words of `text`. What stands in backquotes is one of them: it is there to be copied.
std::vector<std::string> Words(const std::string& text) {
  std::vector<std::string> words;
  std::string word;
  for (size_t i = 0; i <= text.size(); ++i) {
    const bool ends = i == text.size() || text[i] == ' ' || text[i] == '\n';
    if (ends) {
      if (!word.empty()) words.push_back(std::exchange(word, {}));
      continue;
    }
    const size_t close = text[i] == '`' ? text.find('`', i + 1) : std::string::npos;
    const size_t last = close == std::string::npos ? i : close;
    word.append(text, i, last - i + 1);
    i = last;
  }
  return words;
}

}  // namespace

std::string Wrap(const std::string& text, size_t indent, size_t column, size_t columns) {
  std::string wrapped;
  bool first = true;
  for (const std::string& word : Words(text)) {
    const size_t width = WidthOf(word);
    if (!first && column + 1 + width > columns) {
      absl::StrAppend(&wrapped, "\n", std::string(indent, ' '), word);
      column = indent + width;
      continue;
    }
    absl::StrAppend(&wrapped, first ? "" : " ", word);
    column += width + (first ? 0 : 1);
    first = false;
  }
  return wrapped;
}

size_t WidthOf(const std::string& text) {
  constexpr unsigned char kKind = 0xc0, kContinuation = 0x80;
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char byte) {
    return (static_cast<unsigned char>(byte) & kKind) != kContinuation;
  }));
}

std::string Painted(const std::string& text, Colour colour) {
  const char* code = colour == Colour::kGreen    ? "\x1b[32m"
                     : colour == Colour::kYellow ? "\x1b[33m"
                                                 : "\x1b[31m";
  return colour == Colour::kNone ? text : absl::StrCat(code, text, "\x1b[0m");
}

Colour ColourOf(std::string_view state) {
  static const std::map<std::string_view, Colour>& colours =
      *new std::map<std::string_view, Colour>{
          {"ok", Colour::kGreen},          {"ready", Colour::kGreen},
          {"established", Colour::kGreen}, {"completed", Colour::kGreen},
          {"OK", Colour::kGreen},          {"waiting", Colour::kYellow},
          {"drained", Colour::kYellow},    {"dying", Colour::kYellow},
          {"attached", Colour::kYellow},   {"requested", Colour::kYellow},
          {"connecting", Colour::kYellow}, {"draining", Colour::kYellow},
          {"starting", Colour::kYellow},   {"handing over", Colour::kYellow},
          {"watching", Colour::kYellow},   {"canary", Colour::kYellow},
          {"retiring", Colour::kYellow},   {"returning", Colour::kYellow},
          {"refused", Colour::kYellow},    {"WARNING", Colour::kYellow},
          {"unreachable", Colour::kRed},   {"bad", Colour::kRed},
          {"failed", Colour::kRed},        {"rolled back", Colour::kRed},
          {"nobody", Colour::kRed},        {"PROBLEM", Colour::kRed},
      };
  const size_t end = state.find_first_of(",:(");
  std::string_view word = state.substr(0, end);
  while (word.ends_with(' ')) word.remove_suffix(1);
  const auto found = colours.find(word);
  return found == colours.end() ? Colour::kNone : found->second;
}

}  // namespace baton

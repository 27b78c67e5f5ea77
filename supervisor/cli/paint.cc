#include "supervisor/cli/paint.h"

#include <map>

#include "absl/strings/str_cat.h"

namespace baton {

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

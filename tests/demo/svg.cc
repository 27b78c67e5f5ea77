#include "tests/demo/svg.h"

#include <regex>

#include "absl/strings/str_replace.h"

namespace baton::demo {

std::string Compact(const std::string& svg) {
  std::string text = svg;
  // The symbols for points.
  if (const size_t start = text.find("<defs>"), end = text.find("</defs>\n");
      start < end && end != std::string::npos) {
    text.erase(start, end + 8 - start);
  }
  text = absl::StrReplaceAll(
      text, {{R"( stroke-linecap="butt" stroke-linejoin="miter")", ""}, {"<text></text>", ""}});
  // Tenths of a pixel are enough.
  text = std::regex_replace(text, std::regex(R"((\d\.\d)\d\b)"), "$1");
  // Groups without content, from the innermost.
  static const std::regex empty(R"(<g\b[^>]*>\s*</g>\s*)");
  for (size_t before = 0; before != text.size();) {
    before = text.size();
    text = std::regex_replace(text, empty, "");
  }
  return text;
}

}  // namespace baton::demo

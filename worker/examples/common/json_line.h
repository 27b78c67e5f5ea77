// One JSON object on one line, built up field by field. Names and strings are our own and need no
// more than quotes and backslashes escaped.
#ifndef WORKER_EXAMPLES_COMMON_JSON_LINE_H_
#define WORKER_EXAMPLES_COMMON_JSON_LINE_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/strings/str_format.h"

namespace baton::examples {

class JsonLine {
 public:
  JsonLine& Text(std::string_view name, std::string_view value) {
    Name(name);
    text_ += '"';
    for (char c : value) {
      if (c == '"' || c == '\\') text_ += '\\';
      text_ += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
    text_ += '"';
    return *this;
  }
  JsonLine& Count(std::string_view name, uint64_t value) {
    Name(name);
    absl::StrAppendFormat(&text_, "%d", value);
    return *this;
  }
  JsonLine& Number(std::string_view name, double value) {
    Name(name);
    absl::StrAppendFormat(&text_, "%.3f", value);
    return *this;
  }
  JsonLine& Flag(std::string_view name, bool value) { return Raw(name, value ? "true" : "false"); }
  // `json`: a value that is JSON already.
  JsonLine& Raw(std::string_view name, std::string_view json) {
    Name(name);
    text_.append(json);
    return *this;
  }

  std::string Finish() const { return text_ + "}"; }

 private:
  void Name(std::string_view name) {
    text_ += text_.size() > 1 ? ",\"" : "\"";
    text_.append(name);
    text_ += "\":";
  }
  std::string text_ = "{";
};

}  // namespace baton::examples

#endif  // WORKER_EXAMPLES_COMMON_JSON_LINE_H_

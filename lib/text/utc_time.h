#ifndef LIB_TEXT_UTC_TIME_H_
#define LIB_TEXT_UTC_TIME_H_

#include <time.h>

#include <cstdint>
#include <string>

#include "absl/strings/str_format.h"

namespace baton {

// Formats a time as in RFC 3339, in UTC: "2025-01-31T09:15:00.123456Z".
inline std::string UtcTime(int64_t unix_micros) {
  const time_t seconds = unix_micros / 1'000'000;
  tm parts;
  gmtime_r(&seconds, &parts);
  char text[32];
  strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &parts);
  return absl::StrFormat("%s.%06dZ", text, unix_micros % 1'000'000);
}

}  // namespace baton

#endif  // LIB_TEXT_UTC_TIME_H_

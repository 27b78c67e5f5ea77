#include "lib/text/text.h"

#include <algorithm>
#include <charconv>

namespace baton {

std::optional<HostPort> ParseHostPort(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  HostPort parsed;
  const std::string_view port = text.substr(colon + 1);
  const auto [end, error] = std::from_chars(port.begin(), port.end(), parsed.port);
  if (error != std::errc() || end != port.end()) return std::nullopt;
  std::string_view host = text.substr(0, colon);
  const bool bracketed = host.size() > 1 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  const bool ipv6 = host.find(':') != std::string_view::npos;
  if (host.empty() || bracketed != ipv6) return std::nullopt;
  parsed.host = std::string(host);
  return parsed;
}

namespace {

constexpr size_t kBytes = 55;

bool IsHex(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool IsId(std::string_view text) {
  return IsHex(text) && text.find_first_not_of('0') != std::string_view::npos;
}

}  // namespace

std::string CheckedTraceParent(std::string_view text) {
  if (text.size() < kBytes || text[2] != '-' || text[35] != '-' || text[52] != '-') return "";
  const std::string_view version = text.substr(0, 2);
  if (!IsHex(version) || version == "ff") return "";
  if (text.size() > kBytes && (version == "00" || text[kBytes] != '-')) return "";
  if (!IsId(text.substr(3, 32)) || !IsId(text.substr(36, 16)) || !IsHex(text.substr(53, 2))) {
    return "";
  }
  return "00" + std::string(text.substr(2, kBytes - 2));
}

}  // namespace baton

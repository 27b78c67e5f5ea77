// The lines of the audit trail: one JSON object each, whose last member, "hash", is the SHA-256 of
// the hash of the line before and of the object without that member. An attacker who changes,
// removes or adds a line has to write every later line anew, and the log has their hashes, too.
#ifndef SUPERVISOR_CONFIG_AUDIT_CHAIN_H_
#define SUPERVISOR_CONFIG_AUDIT_CHAIN_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace baton {

// Files of a trail: PATH is the newest, then PATH.1, and so on.
inline constexpr int kAuditFiles = 16;
std::string AuditFile(const std::string& path, int age);

// `json`: an object that is not empty. `previous`: the hash of the line before; "" for the first.
struct AuditLine {
  std::string text;  // without its end
  std::string hash;  // 64 hexadecimal digits
};
AuditLine ChainAuditLine(std::string_view json, std::string_view previous);

// Returns the hash that `line` ends with, unchecked; empty: it has none.
std::string_view AuditHashOf(std::string_view line);

struct AuditReport {
  uint64_t records = 0;    // unchanged records, each after the one before it
  uint64_t unchained = 0;  // older records, of a release without hashes
  uint64_t torn = 0;       // incomplete lines, in whose middle control was killed
  int files = 0;
  std::string last_hash;
  bool expected_found = false;
};

// Checks all files of the trail. The predecessor of the first line may have been dropped with an
// older file, so that line is taken as it is. kDataLoss: a line was changed, or does not follow the
// one before it; the message names the first such line. `expected`: a hash that was noted
// elsewhere.
absl::StatusOr<AuditReport> VerifyAuditFiles(const std::string& path, std::string_view expected);

}  // namespace baton

#endif  // SUPERVISOR_CONFIG_AUDIT_CHAIN_H_

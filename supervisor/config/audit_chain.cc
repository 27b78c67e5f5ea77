#include "supervisor/config/audit_chain.h"

#include <openssl/sha.h>

#include <cerrno>
#include <fstream>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "lib/base/status.h"

namespace baton {
namespace {

constexpr std::string_view kBegin = ",\"hash\":\"";
constexpr std::string_view kEnd = "\"}";
constexpr size_t kHashDigits = 2 * SHA256_DIGEST_LENGTH;
constexpr size_t kSuffixBytes = kBegin.size() + kHashDigits + kEnd.size();

bool IsHash(std::string_view text) {
  return text.size() == kHashDigits &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::string HashOf(std::string_view previous, std::string_view json) {
  const std::string text = absl::StrCat(View(previous), "\n", View(json));
  uint8_t digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const uint8_t*>(text.data()), text.size(), digest);
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest), sizeof(digest)});
}

absl::Status VerifyLine(const std::string& line, const std::string& place,
                        std::string_view expected, AuditReport* report) {
  const std::string_view hash = AuditHashOf(line);
  if (hash.empty()) {
    const bool whole = !line.empty() && line.front() == '{' && line.back() == '}';
    if (whole && report->records > 0) {
      return absl::DataLossError(absl::StrCat(place, ": has no hash, and lines before it have"));
    }
    ++(whole ? report->unchained : report->torn);
    return absl::OkStatus();
  }
  const std::string json = line.substr(0, line.size() - kSuffixBytes) + "}";
  // The first record's predecessor is missing here, unless it is the first that was ever written.
  if (report->records > 0 && hash != HashOf(report->last_hash, json)) {
    return absl::DataLossError(absl::StrCat(
        place, ": is not what was written, or not what was written after the line before it"));
  }
  ++report->records;
  report->last_hash = std::string(hash);
  report->expected_found = report->expected_found || hash == expected;
  return absl::OkStatus();
}

absl::Status VerifyFile(const std::string& path, std::string_view expected, AuditReport* report) {
  std::ifstream file(path);
  if (!file.is_open()) return ErrnoStatus(errno, path);
  ++report->files;
  uint64_t number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    BATON_RETURN_IF_ERROR(VerifyLine(line, absl::StrCat(path, ":", number), expected, report));
  }
  return absl::OkStatus();
}

}  // namespace

std::string AuditFile(const std::string& path, int age) {
  return age == 0 ? path : absl::StrCat(path, ".", age);
}

AuditLine ChainAuditLine(std::string_view json, std::string_view previous) {
  AuditLine line;
  line.hash = HashOf(previous, json);
  json.remove_suffix(1);
  line.text = absl::StrCat(View(json), View(kBegin), line.hash, View(kEnd));
  return line;
}

std::string_view AuditHashOf(std::string_view line) {
  if (line.size() <= kSuffixBytes || line.front() != '{') return {};
  const std::string_view suffix = line.substr(line.size() - kSuffixBytes);
  if (!suffix.starts_with(kBegin) || !suffix.ends_with(kEnd)) return {};
  const std::string_view hash = suffix.substr(kBegin.size(), kHashDigits);
  return IsHash(hash) ? hash : std::string_view();
}

absl::StatusOr<AuditReport> VerifyAuditFiles(const std::string& path, std::string_view expected) {
  AuditReport report;
  for (int age = kAuditFiles - 1; age >= 0; --age) {
    const absl::Status status = VerifyFile(AuditFile(path, age), expected, &report);
    // The oldest files need not be there yet.
    if (absl::IsNotFound(status) && age > 0 && report.files == 0) continue;
    BATON_RETURN_IF_ERROR(status);
  }
  return report;
}

}  // namespace baton

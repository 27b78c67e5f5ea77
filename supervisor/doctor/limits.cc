// Limits of processes, and memory.
#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "supervisor/doctor/checks.h"

namespace baton::doctor {
namespace {

constexpr uint64_t kUnlimited = UINT64_MAX;
constexpr uint64_t kMebibyte = 1 << 20;
constexpr uint32_t kCapIpcLock = 14;  // capability.h

struct Limit {
  uint64_t soft = 0;
  uint64_t hard = 0;
};

uint64_t ParseLimit(const std::string& word) {
  uint64_t value = 0;
  return word == "unlimited" || !absl::SimpleAtoi(word, &value) ? kUnlimited : value;
}

// The line of /proc/PID/limits that begins with `name`.
std::optional<Limit> ReadLimit(const View& view, const std::string& name) {
  const std::string text = view.machine.Read(view.process() + "/limits").value_or("");
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::StartsWith(line, name)) continue;
    const std::vector<std::string> words =
        absl::StrSplit(line.substr(name.size()), ' ', absl::SkipEmpty());
    if (words.size() >= 2) return Limit{ParseLimit(words[0]), ParseLimit(words[1])};
  }
  return std::nullopt;
}

// The limit on locked memory does not bind who has CAP_IPC_LOCK (ib_umem_get in the kernel).
bool MayLockAnything(const View& view) {
  if (!view.batond_pid && !view.identity.self) return view.identity.uid == 0;
  const std::string text = view.machine.Read(view.process() + "/status").value_or("");
  const std::string key = "CapEff:";
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    uint64_t capabilities = 0;
    if (!absl::StartsWith(line, key)) continue;
    line.remove_prefix(key.size());
    while (absl::StartsWith(line, "\t") || absl::StartsWith(line, " ")) line.remove_prefix(1);
    return absl::SimpleHexAtoi(line, &capabilities) && (capabilities >> kCapIpcLock & 1) != 0;
  }
  return false;
}

std::string Mebibytes(uint64_t bytes) {
  return bytes == kUnlimited ? "unlimited"
                             : absl::StrCat((bytes + kMebibyte - 1) / kMebibyte, " MiB");
}

std::string ServiceName(const View& view, const ServiceNeeds& service) {
  return view.configured ? "service " + service.name : "a service of default size";
}

// `key` and `value` as systemd's unit and limits.conf have them; `option` is ulimit's.
std::string CureLimit(const View& view, const std::string& key, const std::string& item,
                      const std::string& option, const std::string& value, bool hard_allows) {
  if (view.batond_pid) {
    return absl::StrCat("systemctl edit batond  # [Service] ", key, "=",
                        value == "unlimited" ? "infinity" : value,
                        "; then: systemctl restart batond");
  }
  if (hard_allows) return absl::StrCat("ulimit ", option, " ", value);
  return absl::StrCat("echo '", view.identity.name, " - ", item, " ", value,
                      "' >>/etc/security/limits.d/baton.conf  # and log in again; in a unit: ", key,
                      "=", value == "unlimited" ? "infinity" : value);
}

}  // namespace

void CheckLockedMemory(const View& view, Report& report) {
  const std::optional<Limit> limit = ReadLimit(view, "Max locked memory");
  if (!limit) return;
  uint64_t most_pinned = 0;
  for (const ServiceNeeds& service : view.services) {
    if (service.rdma) most_pinned = std::max(most_pinned, service.pinned_bytes);
  }
  if (MayLockAnything(view) || limit->soft == kUnlimited) {
    return report.Ok({"memlock"},
                     absl::StrCat(limit->soft == kUnlimited ? "unlimited"
                                                            : "CAP_IPC_LOCK: the limit does not "
                                                              "bind",
                                  "; the largest keeper registers ", Mebibytes(most_pinned)));
  }
  bool enough = true;
  for (const ServiceNeeds& service : view.services) {
    if (!service.rdma || limit->soft >= service.pinned_bytes + service.queue_bytes) continue;
    enough = false;
    const bool certain = limit->soft < service.pinned_bytes;
    const uint64_t needed = service.pinned_bytes + service.queue_bytes;
    report.Add(
        certain ? view.severity() : v1::SEVERITY_WARNING,
        {"memlock", view.configured ? service.name : ""},
        {absl::StrCat("RLIMIT_MEMLOCK ", view.whose(), " is ", Mebibytes(limit->soft), "; ",
                      ServiceName(view, service), " registers ", Mebibytes(service.pinned_bytes),
                      ", and up to ", Mebibytes(service.queue_bytes),
                      " of queues with providers that pin them, too"),
         certain ? "its keeper cannot register its memory, and does not start"
                 : "with such a provider its keeper runs out of queue pairs early",
         CureLimit(view, "LimitMEMLOCK", "memlock", "-l", "unlimited", limit->hard >= needed)});
  }
  if (enough) {
    report.Ok({"memlock"}, absl::StrCat(Mebibytes(limit->soft), " ", view.whose(),
                                        "; the largest keeper registers ", Mebibytes(most_pinned)));
  }
}

// batond raises the soft limit to the hard one.
void CheckDescriptors(const View& view, Report& report) {
  const std::optional<Limit> limit = ReadLimit(view, "Max open files");
  if (!limit) return;
  bool enough = true;
  for (const ServiceNeeds& service : view.services) {
    if (service.descriptors <= limit->hard) continue;
    enough = false;
    report.Add(v1::SEVERITY_PROBLEM, {"nofile", view.configured ? service.name : ""},
               {absl::StrCat("the hard RLIMIT_NOFILE ", view.whose(), " is ", limit->hard, "; ",
                             ServiceName(view, service), " has up to ", service.descriptors,
                             " descriptors open"),
                "connections and workers are refused before the service is full",
                CureLimit(view, "LimitNOFILE", "nofile", "-Hn", "1048576", false)});
  }
  if (enough) {
    report.Ok({"nofile"}, absl::StrCat("up to ", limit->hard, " open files ", view.whose()));
  }
}

void CheckMemory(const View& view, Report& report) {
  // 2 refuses every memfd_create without MFD_NOEXEC_SEAL (vm.memfd_noexec, Linux 6.3).
  if (view.machine.Read("/proc/sys/vm/memfd_noexec") == "2") {
    report.Add(v1::SEVERITY_PROBLEM, {"memory", "memfd"},
               {"vm.memfd_noexec is 2: memory files that could be made executable are refused",
                "no keeper can make its arena", "sysctl vm.memfd_noexec=1"});
  }
  uint64_t needed = 0;
  for (const ServiceNeeds& service : view.services) needed += service.buffer_bytes;
  const std::string text = view.machine.Read("/proc/meminfo").value_or("");
  const std::string key = "MemAvailable:";
  uint64_t available = 0;  // KiB
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (words.size() >= 2 && words[0] == key && !absl::SimpleAtoi(words[1], &available)) return;
  }
  if (available == 0) return;
  const std::string both =
      absl::StrCat(Mebibytes(available << 10), " available; buffers need ", Mebibytes(needed));
  // A running batond has taken its share.
  if (!view.batond_pid && needed > available << 10) {
    return report.Add(v1::SEVERITY_PROBLEM, {"memory"},
                      {both, "keepers are killed when they touch it, or other programs are",
                       view.configured ? "lower buffer_bytes in " + view.config_file
                                       : "free memory, or set a smaller buffer_bytes"});
  }
  report.Ok({"memory"}, absl::StrCat(both,
                                     ", as memfds, which the size and the mount options of "
                                     "/dev/shm do not bound"));
}

}  // namespace baton::doctor

// Memory, apart from how much there is: huge pages, and /dev/shm.
#include <sys/stat.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "supervisor/doctor/checks.h"

namespace baton::doctor {
namespace {

constexpr char kOfSharedMemory[] = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
constexpr char kSlower[] =
    "arenas are on small pages: the kernel takes longer to unmap what a dying worker had, and its "
    "successor may wait for that, up to a millisecond for tens of megabytes";

}  // namespace

// A keeper asks for them itself, with MADV_COLLAPSE, which only "deny" refuses
// (Documentation/admin-guide/mm/transhuge.rst in the kernel's sources).
void CheckHugePages(const View& view, Report& report) {
  const std::optional<std::string> enabled = view.machine.Read(kOfSharedMemory);
  if (!enabled) {
    return report.Add(v1::SEVERITY_WARNING, {"huge pages"},
                      {"this kernel has no transparent huge pages of shared memory", kSlower,
                       "apt-get install linux-image-amd64 && reboot"});
  }
  if (absl::StrContains(*enabled, "[deny]")) {
    return report.Add(v1::SEVERITY_WARNING, {"huge pages"},
                      {"shared memory is denied huge pages", kSlower,
                       absl::StrCat("echo never >", kOfSharedMemory,
                                    "  # not deny: who asks for them gets them")});
  }
  report.Ok({"huge pages"}, "keepers get them for their arenas");
}

// Baton's own memory is of memfds. What is loaded beside it is not.
void CheckSharedMemory(const View& view, Report& report) {
  const std::optional<FileFacts> facts = view.machine.Look("/dev/shm");
  const std::string consequence =
      "Baton does without; libraries that services load beside it (UCX, libfabric, MPI) put their "
      "shared memory there";
  if (!facts || !S_ISDIR(facts->mode)) {
    return report.Add(
        v1::SEVERITY_WARNING, {"/dev/shm"},
        {"/dev/shm is missing", consequence,
         "mkdir -p /dev/shm && mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs /dev/shm"});
  }
  if ((facts->mode & 07777) != 01777) {
    const bool everybody_removes = (facts->mode & 0002) != 0;
    return report.Add(v1::SEVERITY_WARNING, {"/dev/shm"},
                      {everybody_removes ? "every user may remove what others have in /dev/shm"
                                         : "not every user may make files in /dev/shm",
                       consequence, "chmod 1777 /dev/shm"});
  }
  report.Ok({"/dev/shm"}, "open to every user; arenas do not need it");
}

}  // namespace baton::doctor

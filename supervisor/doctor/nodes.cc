// Checks the files in /dev through which programs reach devices: that they exist, are the right
// ones, and may be opened.
#include <sys/stat.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "supervisor/doctor/checks.h"

namespace baton::doctor {
namespace {

constexpr char kGroup[] = "rdma";
constexpr char kConnections[] = "/dev/infiniband/rdma_cm";
constexpr char kRule[] = "deploy/udev/70-baton-rdma.rules";
constexpr char kInstallRule[] =
    "install -m 644 deploy/udev/70-baton-rdma.rules /etc/udev/rules.d/ && udevadm control --reload "
    "&& udevadm trigger --action=add --subsystem-match=infiniband_verbs --subsystem-match=misc";

bool IsMember(const Identity& identity, uint32_t gid) {
  return identity.gid == gid ||
         std::find(identity.groups.begin(), identity.groups.end(), gid) != identity.groups.end();
}

// Decides like the kernel: the first class that fits counts, even if a later one allows more.
bool MayOpen(const FileFacts& file, const Identity& identity) {
  constexpr uint32_t kReadWrite = 06;
  if (identity.uid == 0) return true;
  uint32_t allowed = file.mode;
  if (file.uid == identity.uid) {
    allowed = file.mode >> 6;
  } else if (IsMember(identity, file.gid)) {
    allowed = file.mode >> 3;
  }
  return (allowed & kReadWrite) == kReadWrite;
}

std::string Describe(const std::string& path, const FileFacts& file, const View& view) {
  const bool rdma = view.machine.GroupId(kGroup) == file.gid;
  return absl::StrFormat("%s (mode %04o, uid %d, %s)", path, file.mode & 07777, file.uid,
                         rdma ? std::string("group rdma") : absl::StrCat("gid ", file.gid));
}

std::string CureAccess(const std::string& path, const FileFacts& file, const View& view) {
  const std::optional<uint32_t> group = view.machine.GroupId(kGroup);
  std::string cure;
  if (!group) cure = "groupadd --system rdma && ";
  if (group != file.gid) absl::StrAppend(&cure, "chgrp rdma ", path, " && ");
  if ((file.mode & 0777) != 0660) absl::StrAppend(&cure, "chmod 0660 ", path, " && ");
  if (!group || !IsMember(view.identity, *group)) {
    absl::StrAppend(&cure, "usermod -a -G rdma ", view.identity.name, " && ");
  }
  cure.resize(cure.size() - 4);
  return cure;
}

void CheckAccess(const View& view, const std::string& path, const FileFacts& file,
                 const Place& place, Report& report) {
  if (!MayOpen(file, view.identity)) {
    return report.Add(
        view.severity(), place,
        {absl::StrCat("user ", view.identity.name, " may not open ", Describe(path, file, view)),
         absl::StrCat("a keeper that runs as ", view.identity.name,
                      " cannot use it; changes last until the device appears again, with ", kRule,
                      " for good, and membership takes effect at the next login or start"),
         CureAccess(path, file, view)});
  }
  if ((file.mode & 06) != 0) {
    return report.Add(v1::SEVERITY_WARNING, place,
                      {absl::StrCat("every user may open ", Describe(path, file, view)),
                       "no group says who may use the card: any program can take its queue pairs "
                       "and memory regions",
                       kInstallRule});
  }
  report.Ok(place, absl::StrCat(Describe(path, file, view), ", open to ", view.identity.name));
}

// `number`: the device number that the kernel has registered.
void CheckNode(const View& view, const std::string& path, const std::string& number,
               const Place& place, Report& report) {
  const std::optional<FileFacts> file = view.machine.Look(path);
  std::string numbers = number;
  std::replace(numbers.begin(), numbers.end(), ':', ' ');
  const std::string make = absl::StrCat("mknod -m 0660 ", path, " c ", numbers);
  if (!file) {
    return report.Add(
        view.severity(), place,
        {absl::StrCat(path, " is missing, and the kernel has the device (", number, ")"),
         "no program can open it; in a container, it has to be passed in (--device)",
         absl::StrCat("mkdir -p /dev/infiniband && ", make, " && chgrp rdma ", path)});
  }
  if (!S_ISCHR(file->mode) || file->device != number) {
    return report.Add(
        view.severity(), place,
        {absl::StrCat(path, " is not the device ", number, " that the kernel has, but ",
                      S_ISCHR(file->mode) ? file->device : "no character device"),
         "what opens it gets another device, or none",
         absl::StrCat("rm ", path, " && ", make, " && chgrp rdma ", path)});
  }
  CheckAccess(view, path, *file, place, report);
}

}  // namespace

bool MayOpenNodes(const View& view, const RdmaDevice& device) {
  for (const std::string& path : {"/dev/infiniband/" + device.node, std::string(kConnections)}) {
    const std::optional<FileFacts> file = view.machine.Look(path);
    if (!file || !MayOpen(*file, view.identity)) return false;
  }
  return true;
}

void CheckNodes(const View& view, Report& report) {
  for (const RdmaDevice& device : view.devices) {
    if (device.node.empty()) continue;  // ib_uverbs is missing, which another check reports
    CheckNode(view, "/dev/infiniband/" + device.node, device.node_number, {"node", device.name},
              report);
  }
  const std::optional<std::string> number = view.machine.Read("/sys/class/misc/rdma_cm/dev");
  if (number) {
    CheckNode(view, kConnections, *number, {"node", "rdma_cm"}, report);
  }
}

void CheckGroup(const View& view, Report& report) {
  const std::optional<uint32_t> group = view.machine.GroupId(kGroup);
  if (!group) {
    return report.Add(
        v1::SEVERITY_WARNING, {"group"},
        {"there is no group rdma", "access to the card can only be given to everybody or to root",
         absl::StrCat("groupadd --system rdma && ", kInstallRule)});
  }
  report.Ok({"group"},
            absl::StrCat("group rdma exists, gid ", *group, "; user ", view.identity.name,
                         view.identity.uid == 0            ? " needs no membership"
                         : IsMember(view.identity, *group) ? " is a member"
                                                           : " is not a member"));
}

}  // namespace baton::doctor

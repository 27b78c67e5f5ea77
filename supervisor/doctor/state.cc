// batond's directory: its own, and nobody else's to write.
#include <sys/stat.h>

#include "absl/strings/str_cat.h"
#include "supervisor/config/state_files.h"
#include "supervisor/doctor/checks.h"

namespace baton::doctor {
namespace {

std::string ParentOf(const std::string& path) {
  const size_t slash = path.find_last_not_of('/');
  const size_t end = path.rfind('/', slash);
  return end == std::string::npos || end == 0 ? "/" : path.substr(0, end);
}

// batond makes the directory, not what it is in.
void CheckParent(const View& view, const Place& place, Report& report) {
  const std::string parent = ParentOf(view.state_dir);
  const std::optional<FileFacts> facts = view.machine.Look(parent);
  const std::string make =
      absl::StrCat("install -d -m 0700 -o ", view.identity.name, " ", view.state_dir);
  if (!facts) {
    return report.Add(v1::SEVERITY_PROBLEM, place,
                      {parent + " is missing", "batond cannot make its state directory", make});
  }
  const bool own = facts->uid == view.identity.uid && (facts->mode & 0300) == 0300;
  // Groups' directories are not asked for: /run and /tmp are root's and everybody's.
  if (view.identity.uid != 0 && !own && (facts->mode & 03) != 03) {
    return report.Add(v1::SEVERITY_PROBLEM, place,
                      {absl::StrCat("user ", view.identity.name, " may not make ", view.state_dir),
                       "batond does not start", make});
  }
  report.Ok(place, absl::StrCat(view.state_dir, " will be made when batond starts"));
}

void CheckSocket(const View& view, Report& report) {
  const std::string path = OperatorSocketPath(view.state_dir);
  const std::optional<FileFacts> socket = view.machine.Look(path);
  if (!socket) {
    return report.Add(
        v1::SEVERITY_WARNING, {"socket"},
        {absl::StrCat("batond, pid ", *view.batond_pid, ", runs, and ", path, " is missing"),
         "no operator can reach it", "journalctl -u batond  # is control failing?"});
  }
  report.Ok({"socket"}, absl::StrCat(path, ": batond, pid ", *view.batond_pid,
                                     ", decides by the caller's uid and gid"));
}

}  // namespace

// Finds the problems with which batond refuses to start (supervisor/batond/state_directory.cc).
void CheckStateDirectory(const View& view, Report& report) {
  const std::string& path = view.state_dir;
  const Place place = {"state directory"};
  const std::optional<FileFacts> facts = view.machine.Look(path);
  if (!facts) return CheckParent(view, place, report);
  const auto refuse = [&](const std::string& what, const std::string& cure) {
    report.Add(v1::SEVERITY_PROBLEM, place, {what, "batond does not start", cure});
  };
  if (!S_ISDIR(facts->mode)) return refuse(path + " is not a directory", "rm " + path);
  if ((facts->mode & 022) != 0) {
    return refuse(path + " is writable by others, who could put a socket of theirs there",
                  "chmod go-w " + path);
  }
  if (facts->uid != view.identity.uid) {
    return refuse(absl::StrCat(path, " belongs to uid ", facts->uid, ", and user ",
                               view.identity.name, " is uid ", view.identity.uid),
                  absl::StrCat("chown ", view.identity.name, " ", path,
                               "  # or run batond, and this, as its owner (--user)"));
  }
  report.Ok(place, absl::StrCat(path, " is ", view.identity.name, "'s"));
  if (view.batond_pid) CheckSocket(view, report);
}

}  // namespace baton::doctor

// Checks of batond: that its directory is its own and nobody else may write there, and that the
// parts of a running Baton are of one release.
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

// Checks the parent directory, because batond makes the state directory only.
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
  // Group permissions are not checked, because /run and /tmp are root's and everybody's.
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

std::string Describe(const v1::Version& version) {
  return absl::StrCat(version.release(), " (layout ", version.layout_version(), ", protocol ",
                      version.protocol_version(), ")");
}

// Reports workers of other releases, which may serve. A worker that was built for another layout or
// protocol is refused when it attaches.
void CheckWorkers(const RunningVersions& running, Report& report) {
  for (const auto& [service, releases] : running.workers) {
    for (const auto& [release, count] : releases) {
      if (release == running.control.release()) continue;
      const std::string whose =
          release.empty() ? "an older release, which does not tell" : "release " + release;
      report.Add(v1::SEVERITY_WARNING, {"version", service},
                 {absl::StrCat(count, count == 1 ? " worker was" : " workers were",
                               " built with the library of ", whose, ", control is of ",
                               running.control.release()),
                  "it serves as it is; what the library has mended since, it has not",
                  absl::StrCat("build it with release ", running.control.release(),
                               ", then: baton upgrade ", service, " --exec PROGRAM")});
    }
  }
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

void CheckVersions(const View& view, Report& report) {
  if (!view.running) return;
  const RunningVersions& running = *view.running;
  if (!running.problem.empty()) {
    return report.Add(
        v1::SEVERITY_WARNING, {"version"},
        {absl::StrCat("batond runs, and does not tell its release: ", running.problem),
         "whether its parts are of one release is not known",
         "baton doctor  # again, as an operator: root, or one of operator_uids"});
  }
  const int findings = report.findings();
  if (running.own_release != running.control.release()) {
    report.Add(
        v1::SEVERITY_WARNING, {"version", "baton"},
        {absl::StrCat("this program is of release ", running.own_release, ", control is of ",
                      running.control.release()),
         "one may not know what the other says: fields and commands may be missing",
         "install baton, batond, baton-driver, baton-keeper, baton-control, baton-launch and "
         "libbaton-driver.so of one release, then: baton upgrade --baton"});
  }
  for (const auto& [service, version] : running.keepers) {
    if (Describe(version) == Describe(running.control)) continue;
    report.Add(
        v1::SEVERITY_WARNING, {"version", service},
        {absl::StrCat("its keeper is of release ", Describe(version), ", control is of ",
                      Describe(running.control)),
         "the keeper is still the one that was started before the last installation; workers "
         "that were built for the new layout or protocol cannot attach to it",
         absl::StrCat("baton upgrade --baton ", service, "  # connections live on")});
  }
  CheckWorkers(running, report);
  if (report.findings() == findings) {
    report.Ok({"version"}, absl::StrCat("this program, control and ", running.keepers.size(),
                                        " keepers are of release ", running.own_release));
  }
}

}  // namespace baton::doctor

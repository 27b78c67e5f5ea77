// Whether the parts of a Baton that runs are of one release. Workers need not be: one that was
// built for another layout or protocol is refused when it attaches, and the others are told of.
#include "absl/strings/str_cat.h"
#include "supervisor/doctor/checks.h"

namespace baton::doctor {
namespace {

std::string Describe(const v1::Version& version) {
  return absl::StrCat(version.release(), " (layout ", version.layout_version(), ", protocol ",
                      version.protocol_version(), ")");
}

bool IsSame(const v1::Version& one, const v1::Version& other) {
  return one.release() == other.release() && one.layout_version() == other.layout_version() &&
         one.protocol_version() == other.protocol_version();
}

bool CheckWorkers(const RunningVersions& running, Report& report) {
  bool same = true;
  for (const auto& [service, releases] : running.workers) {
    for (const auto& [release, count] : releases) {
      if (release == running.control.release()) continue;
      same = false;
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
  return same;
}

}  // namespace

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
  bool same = true;
  if (running.own_release != running.control.release()) {
    same = false;
    report.Add(
        v1::SEVERITY_WARNING, {"version", "baton"},
        {absl::StrCat("this program is of release ", running.own_release, ", control is of ",
                      running.control.release()),
         "one may not know what the other says: fields and commands may be missing",
         "install baton, batond, baton-driver, baton-keeper, baton-control and baton-launch of one "
         "release, then: baton upgrade --baton"});
  }
  for (const auto& [service, version] : running.keepers) {
    if (IsSame(version, running.control)) continue;
    same = false;
    report.Add(
        v1::SEVERITY_WARNING, {"version", service},
        {absl::StrCat("its keeper is of release ", Describe(version), ", control is of ",
                      Describe(running.control)),
         "the keeper is still the one that was started before the last installation; workers "
         "that were built for the new layout or protocol cannot attach to it",
         absl::StrCat("baton upgrade --baton ", service, "  # connections live on")});
  }
  same = CheckWorkers(running, report) && same;
  if (same) {
    report.Ok({"version"}, absl::StrCat("this program, control and ", running.keepers.size(),
                                        " keepers are of release ", running.own_release));
  }
}

}  // namespace baton::doctor

// rdma-core in user space: both libraries of one release.
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "supervisor/doctor/checks.h"

namespace baton::doctor {
namespace {

// The release ends the name of the file: "libibverbs.so.1.14.44.0" is of rdma-core 44.0.
std::string ReleaseOf(const std::string& file) {
  const std::vector<std::string> parts = absl::StrSplit(file, '.');
  if (parts.size() < 5) return "";
  return absl::StrCat(parts[parts.size() - 2], ".", parts[parts.size() - 1]);
}

}  // namespace

void CheckLibraries(const View& view, Report& report) {
  std::vector<std::string> files;
  std::set<std::string> releases;
  for (const Library& library : view.machine.Libraries()) {
    files.push_back(library.file.empty() ? library.name : library.file);
    releases.insert(ReleaseOf(library.file));
  }
  const std::string all = absl::StrJoin(files, ", ");
  if (releases.size() > 1) {
    return report.Add(v1::SEVERITY_WARNING, {"library"},
                      {absl::StrCat("of different releases of rdma-core: ", all),
                       "they are tested together only: expect devices that are not found, or "
                       "calls that fail",
                       "apt-get install --reinstall libibverbs1 librdmacm1 ibverbs-providers && "
                       "ldconfig"});
  }
  const std::string release = releases.empty() ? "" : *releases.begin();
  report.Ok({"library"}, release.empty() ? absl::StrCat("of an unknown release: ", all)
                                         : absl::StrCat("rdma-core ", release, ": ", all));
}

}  // namespace baton::doctor

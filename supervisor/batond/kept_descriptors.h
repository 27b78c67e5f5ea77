// Descriptors that outlive batond itself: those of native services, of which the service manager
// keeps a copy for the next batond (systemd's file descriptor store: "FDSTORE=1" of sd_notify(3),
// FileDescriptorStoreMax= of the unit). While any is kept, the last of its descriptors is not
// closed, whatever batond dies of; what hangs on that is in deploy/upgrade_batond.md.
#ifndef SUPERVISOR_BATOND_KEPT_DESCRIPTORS_H_
#define SUPERVISOR_BATOND_KEPT_DESCRIPTORS_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "lib/base/file_descriptor.h"

namespace baton {

// The manager knows files by one name each, keeps no file twice, and gives them back in any order.
// So a file has a number, which is its name there, and which of them are a service's entries is in
// one more file, the manifest. Each change is a new manifest, under a higher number: after the
// files that it names, before the former one goes. Killed between any two of these, what the
// highest manifest says is true.
//
// The manager does not answer. What it did not keep (the store is full, or there is none) is
// missing when it is given back, and then nothing of that service is used. Thread-compatible.
class KeptDescriptors {
 public:
  using Named = std::pair<std::string, FileDescriptor>;
  using Entries = std::map<std::string, std::vector<FileDescriptor>>;  // of a DescriptorStore

  // Returns why this process may not keep descriptors, with the cure.
  static absl::Status CheckUsable();

  // Returns the descriptors that the manager has given back to this process. Takes LISTEN_FDS out
  // of the environment.
  static std::vector<Named> GivenBack();

  explicit KeptDescriptors(std::vector<Named> given_back);

  // The service's, as they were last. Copies: they stay kept.
  Entries Of(const std::string& service) const;
  // The others' are given up, and closed with that.
  void KeepOnly(const std::set<std::string>& services);
  // In the place of what was there under `name`; none: it is given up. They stay the caller's.
  void Put(const std::string& service, const std::string& name,
           const std::vector<int>& descriptors);

 private:
  using Place = std::pair<std::string, std::string>;  // service, name

  void ReadManifest(int manifest);
  void DropIncomplete();
  uint64_t NumberOf(int descriptor);
  void Commit();
  bool SendRest();
  void RemoveUnused();

  std::map<uint64_t, FileDescriptor> files_;        // by number; our own copies
  std::map<Place, std::vector<uint64_t>> entries_;  // numbers, in the order of Put
  std::set<uint64_t> manifests_;                    // that the manager may have
  std::set<uint64_t> unsent_;                       // of files_, that the manager did not take
  uint64_t last_ = 0;                               // number that was given
};

}  // namespace baton

#endif  // SUPERVISOR_BATOND_KEPT_DESCRIPTORS_H_

// Network namespaces for tests, which leave nothing in the machine.
#ifndef TESTS_HARNESS_NETWORK_NAMESPACE_H_
#define TESTS_HARNESS_NETWORK_NAMESPACE_H_

#include <string>

#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"

namespace baton::harness {

// A new one, in which nothing is but a loopback interface that is up. It is there as long as this
// object, or a process in it.
class NetworkNamespace {
 public:
  // kPermissionDenied: it takes CAP_SYS_ADMIN.
  static absl::StatusOr<NetworkNamespace> Create();

  // Returns a path to the namespace's file. Whoever may look into this process can open it.
  std::string path() const;
  int fd() const { return file_.get(); }
  // Returns what links of /proc show for this namespace.
  std::string Identity() const;

  // The calling thread is in it, and the processes that it starts, as long as this lives.
  class Stay {
   public:
    explicit Stay(const NetworkNamespace& other);
    ~Stay();
    Stay(const Stay&) = delete;
    Stay& operator=(const Stay&) = delete;

   private:
    FileDescriptor home_;
  };

 private:
  explicit NetworkNamespace(FileDescriptor file) : file_(std::move(file)) {}
  FileDescriptor file_;
};

}  // namespace baton::harness

#endif  // TESTS_HARNESS_NETWORK_NAMESPACE_H_

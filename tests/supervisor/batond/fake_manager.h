// A service manager's end of NOTIFY_SOCKET, as far as it keeps descriptors (systemd 252's
// service_add_fd_store): no file twice, up to a limit, given back in any order.
#ifndef TESTS_SUPERVISOR_BATOND_FAKE_MANAGER_H_
#define TESTS_SUPERVISOR_BATOND_FAKE_MANAGER_H_

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lib/base/file_descriptor.h"

namespace baton {

class FakeManager {
 public:
  using Named = std::pair<std::string, FileDescriptor>;

  // Listens at `path`, with a thread of its own. Keeps at most `most`.
  explicit FakeManager(const std::string& path, size_t most = 1000);
  ~FakeManager();
  FakeManager(const FakeManager&) = delete;
  FakeManager& operator=(const FakeManager&) = delete;

  const std::string& path() const { return path_; }
  // Keeps `descriptor`, too.
  void Add(const std::string& name, FileDescriptor descriptor);
  // Copies of all that is kept, the latest first, when everything that was sent before has been
  // heeded.
  std::vector<Named> Kept();
  // Closes all that is kept, as when batond was stopped for good.
  void LetGo();
  // What else was told, likewise: "STATUS=..."
  std::vector<std::string> Told();

 private:
  void Serve();
  void Heed(const std::string& message, FileDescriptor descriptor);
  void Keep(const std::string& name, FileDescriptor descriptor);
  void CatchUp();

  const std::string path_;
  const size_t most_;
  FileDescriptor socket_;
  std::mutex mutex_;
  std::condition_variable caught_up_;
  std::vector<Named> kept_;
  std::vector<std::string> told_;
  int syncs_ = 0;
  std::thread thread_;
};

}  // namespace baton

#endif  // TESTS_SUPERVISOR_BATOND_FAKE_MANAGER_H_

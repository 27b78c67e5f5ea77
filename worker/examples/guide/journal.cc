// Chapter 6: writes what peers send to a file, each message once and in the order of the replies.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "worker/examples/guide/reply_service.h"

namespace baton::guide {
namespace {

constexpr uint64_t kRecordBytes = 32;

class Journal final : public ReplyService {
 public:
  explicit Journal(std::string directory) : directory_(std::move(directory)) {}

 private:
  absl::Status Check(const Capacity& capacity) override {
    if (!capacity.outside_effects) {
      return absl::FailedPreconditionError("a journal needs a service with outside_effects: true");
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Reply(Shard& shard, Connection&,
                                    const std::string& message) override {
    uint64_t records = 0;
    if (!shard.state().empty()) std::memcpy(&records, shard.state().data(), sizeof(records));
    BATON_RETURN_IF_ERROR(Write(shard.index(), records, message));
    const uint64_t next = records + 1;
    BATON_RETURN_IF_ERROR(
        shard.SetShardState({reinterpret_cast<const uint8_t*>(&next), sizeof(next)}, 1));
    return absl::StrCat("record ", records);
  }

  // The committed state says where the record goes. A successor that receives the message again
  // has the same state, and writes the same bytes to the same place.
  absl::Status Write(uint32_t shard, uint64_t record, const std::string& message) {
    std::string line = message.substr(0, kRecordBytes - 1);
    line.resize(kRecordBytes - 1, ' ');
    line += '\n';
    const std::string path = absl::StrCat(directory_, "/journal-", shard);
    const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0) return ErrnoStatus(errno, absl::StrCat("cannot open ", path));
    const ssize_t written = pwrite(fd, line.data(), kRecordBytes, off_t(record * kRecordBytes));
    absl::Status status = written == kRecordBytes
                              ? absl::OkStatus()
                              : ErrnoStatus(errno, absl::StrCat("cannot write ", path));
    close(fd);
    return status;
  }

  const std::string directory_;
};

}  // namespace
}  // namespace baton::guide

int main(int argc, char** argv) {
  baton::guide::Journal journal(argc > 3 ? argv[3] : ".");
  return baton::guide::Serve(journal,
                             {.service = "counter",
                              .reads_state_version_min = 1,
                              .reads_state_version_max = 1,
                              .writes_state_version = 1,
                              .commit_mode = baton::CommitMode::kAfterEachCompletion},
                             argc, argv);
}

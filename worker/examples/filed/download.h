// Fetches files and whole trees from filed into a local directory. baton-get's work, without its
// command line.
#ifndef WORKER_EXAMPLES_FILED_DOWNLOAD_H_
#define WORKER_EXAMPLES_FILED_DOWNLOAD_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "lib/base/file_descriptor.h"
#include "worker/examples/filed/filed_protocol.h"
#include "worker/examples/filed/get_client.h"
#include "worker/examples/filed/local_tree.h"

namespace baton::filed {

struct DownloadOptions {
  // Files that are here with the server's size and time are left as they are, and parts of earlier
  // runs are gone on with.
  bool resume = false;
  // Nothing is written: the server sends everything, and it is compared with the local files.
  bool verify = false;
  uint64_t range_bytes = 8 << 20;  // of one request
};

// The files and bytes that were found and done so far. More may be found until the end.
struct Totals {
  uint64_t directories = 0;
  uint64_t files_found = 0, bytes_found = 0;
  uint64_t files_done = 0, bytes_done = 0;  // with those that were here
  uint64_t files_kept = 0;                  // that were here
  uint64_t bytes_kept = 0;                  // that were here, in files and parts
  uint64_t failed = 0;                      // files and directories
};

// One use. `client` and `tree` must outlive it.
//
// Pieces are checked by their CRC32C, and each range names the file's size and time, so that a file
// that changes on the server fails and is never mixed of two. Directories keep no times.
class Download final : private GetClient::Sink {
 public:
  // `complain` is called for each file that fails, with its path, which is not escaped, and the
  // reason. `report` is called again and again, with the path of the file that moved last.
  using Complain = std::function<void(const std::string& path, const std::string& reason)>;
  using Report = std::function<void(const Totals& totals, const std::string& path)>;

  Download(GetClient* client, LocalTree* tree, const DownloadOptions& options, Complain complain,
           Report report)
      : client_(client),
        tree_(tree),
        options_(options),
        complain_(std::move(complain)),
        report_(std::move(report)) {}

  // Fetches a file, which gets its last name, or all that is below a directory. An error ends the
  // whole download: the connection has failed, or nothing can be written any more. Files that fail
  // by themselves are counted in totals().
  absl::Status Run(const std::string& path);

  const Totals& totals() const { return totals_; }

 private:
  struct File {
    std::string path;   // on the server
    std::string local;  // the place of it
    FileInfo info = {};
    FileDescriptor fd;
    uint64_t asked = 0, taken = 0;  // bytes from the beginning
    bool failed = false;
  };
  struct Directory {
    std::string path, local;
    std::string after;  // the last name that is known
  };

  absl::Status OnPiece(uint64_t id, uint64_t offset, absl::Span<const uint8_t> bytes,
                       bool last) override;
  absl::Status OnReply(const DecodedReply& reply) override;

  bool IsDone() const;
  absl::Status AskMore();
  void Find(const std::string& path, const std::string& local, const FileInfo& info);
  absl::Status OnStat(const DecodedReply& reply);
  void OnList(const DecodedReply& reply);
  void OnFailure(const DecodedReply& reply);
  absl::Status OpenNext();
  absl::Status Open(File& file);
  absl::Status Take(File& file, absl::Span<const uint8_t> bytes);
  absl::Status Compare(File& file, absl::Span<const uint8_t> bytes);
  absl::Status Complete(File& file);
  void Fail(const std::string& path, std::string_view reason);
  void FailFile(File& file, const absl::Status& why);

  GetClient* const client_;
  LocalTree* const tree_;
  const DownloadOptions options_;
  const Complain complain_;
  const Report report_;
  Totals totals_;
  std::string root_;
  uint64_t stat_ = 0, list_ = 0;                      // unanswered requests; 0: none
  std::vector<Directory> directories_;                // to be listed, the last one first
  std::deque<std::shared_ptr<File>> found_;           // and nothing of them asked
  std::shared_ptr<File> current_;                     // whose next range is asked next
  std::map<uint64_t, std::shared_ptr<File>> ranges_;  // unanswered, by the request's number
  std::vector<uint8_t> compared_;                     // a piece as it is here
};

}  // namespace baton::filed

#endif  // WORKER_EXAMPLES_FILED_DOWNLOAD_H_

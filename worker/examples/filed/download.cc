#include "worker/examples/filed/download.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"

namespace baton::filed {
namespace {

// Directories are listed ahead until so many files wait.
constexpr size_t kFilesAhead = 1024;

bool IsDirectory(const FileInfo& info) {
  return info.type == static_cast<uint8_t>(FileType::kDirectory);
}

// Reads as many bytes as there are, at most all.
absl::StatusOr<size_t> ReadAt(int fd, uint64_t offset, absl::Span<uint8_t> bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got =
        pread(fd, bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(errno, "it cannot be read here");
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  return done;
}

}  // namespace

absl::Status Download::Run(const std::string& path) {
  root_ = path;
  stat_ = client_->Stat(path);
  while (!IsDone()) {
    BATON_RETURN_IF_ERROR(AskMore());
    BATON_RETURN_IF_ERROR(client_->Turn(*this));
  }
  return absl::OkStatus();
}

bool Download::IsDone() const {
  return stat_ == 0 && list_ == 0 && directories_.empty() && found_.empty() &&
         current_ == nullptr && ranges_.empty();
}

absl::Status Download::AskMore() {
  while (client_->may_ask()) {
    if (list_ == 0 && !directories_.empty() && found_.size() < kFilesAhead) {
      list_ = client_->List(directories_.back().path, directories_.back().after);
      continue;
    }
    if (current_ == nullptr) {
      if (found_.empty()) break;
      BATON_RETURN_IF_ERROR(OpenNext());
      continue;
    }
    File& file = *current_;
    const uint64_t length = std::min(options_.range_bytes, file.info.size - file.asked);
    ranges_[client_->Get(file.path, file.info, file.asked, length)] = current_;
    file.asked += length;
    if (file.asked == file.info.size) current_.reset();
  }
  return absl::OkStatus();
}

// ---------------------------------------------------------------- what there is

void Download::Find(const std::string& path, const std::string& local, const FileInfo& info) {
  if (!IsDirectory(info)) {
    auto file = std::make_shared<File>();
    file->path = path;
    file->local = local;
    file->info = info;
    found_.push_back(std::move(file));
    ++totals_.files_found;
    totals_.bytes_found += info.size;
    return;
  }
  const absl::Status made = options_.verify ? absl::OkStatus() : tree_->MakeDirectory(local);
  if (!made.ok()) return Fail(path, MessageOf(made));
  directories_.push_back({path, local, {}});
  ++totals_.directories;
}

absl::Status Download::OnReply(const DecodedReply& reply) {
  if (reply.header.code != static_cast<uint8_t>(ReplyCode::kOk)) {
    OnFailure(reply);
    return absl::OkStatus();
  }
  if (reply.header.id == stat_) return OnStat(reply);
  OnList(reply);
  return absl::OkStatus();
}

absl::Status Download::OnStat(const DecodedReply& reply) {
  stat_ = 0;
  const FileInfo& info = reply.header.info;
  if (IsDirectory(info)) {
    Find(root_, "", info);
    return absl::OkStatus();
  }
  if (root_.empty()) return absl::InvalidArgumentError("the server serves no directory");
  Find(root_, root_.substr(root_.rfind('/') + 1), info);  // all of it without a '/'
  return absl::OkStatus();
}

void Download::OnList(const DecodedReply& reply) {
  list_ = 0;
  const Directory directory = directories_.back();
  directories_.pop_back();
  const std::vector<NamedEntry>& entries = reply.entries;
  if (!entries.empty() && entries.front().name <= directory.after) {
    return Fail(directory.path, "the server lists names twice");
  }
  if (reply.header.more != 0 && entries.empty()) {
    return Fail(directory.path, "the server's list does not end");
  }
  if (reply.header.more != 0) {
    directories_.push_back({directory.path, directory.local, entries.back().name});
  }
  for (const NamedEntry& entry : entries) {
    const std::string path = JoinPath(directory.path, entry.name);
    if (IsPlainPath(path)) {
      Find(path, JoinPath(directory.local, entry.name), entry.info);
    } else {
      Fail(path, "its path is too long to be asked for");
    }
  }
}

void Download::OnFailure(const DecodedReply& reply) {
  const std::string_view reason = ReplyCodeName(ReplyCode(reply.header.code));
  if (reply.header.id == stat_) {
    stat_ = 0;
    return Fail(root_, reason);
  }
  if (reply.header.id == list_) {
    list_ = 0;
    Fail(directories_.back().path, reason);
    return directories_.pop_back();
  }
  const auto found = ranges_.find(reply.header.id);
  if (found == ranges_.end()) return;
  FailFile(*found->second, absl::UnavailableError(View(reason)));
  ranges_.erase(found);
}

void Download::Fail(const std::string& path, std::string_view reason) {
  ++totals_.failed;
  complain_(path, std::string(reason));
}

// Ranges of it that were asked for are answered in vain.
void Download::FailFile(File& file, const absl::Status& why) {
  if (file.failed) return;
  file.failed = true;
  Fail(file.path, MessageOf(why));
  if (current_.get() == &file) current_.reset();
}

// ---------------------------------------------------------------- one file

absl::Status Download::OpenNext() {
  current_ = std::move(found_.front());
  found_.pop_front();
  const std::shared_ptr<File> file = current_;
  const absl::Status opened = Open(*file);
  if (!opened.ok()) {
    FailFile(*file, opened);
    return absl::OkStatus();
  }
  file->asked = file->taken;
  if (file->taken < file->info.size) return absl::OkStatus();
  current_.reset();
  return Complete(*file);
}

absl::Status Download::Open(File& file) {
  if (options_.verify) {
    BATON_ASSIGN_OR_RETURN(file.fd, tree_->OpenFile(file.local));
    struct stat status;
    if (fstat(file.fd.get(), &status) != 0) return ErrnoStatus(errno, "it cannot be read here");
    if (static_cast<uint64_t>(status.st_size) == file.info.size) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat("it has ", status.st_size, " bytes here and ",
                                            file.info.size, " on the server"));
  }
  if (options_.resume && tree_->Has(file.local, file.info)) {
    file.taken = file.info.size;
    ++totals_.files_kept;
  } else {
    BATON_ASSIGN_OR_RETURN(LocalTree::Part part,
                           tree_->OpenPart(file.local, file.info, options_.resume));
    file.fd = std::move(part.fd);
    file.taken = part.length;
  }
  totals_.bytes_kept += file.taken;
  totals_.bytes_done += file.taken;
  return absl::OkStatus();
}

absl::Status Download::OnPiece(uint64_t id, uint64_t offset, absl::Span<const uint8_t> bytes,
                               bool last) {
  const auto found = ranges_.find(id);
  if (found == ranges_.end()) return absl::InternalError("a piece of no range");
  const std::shared_ptr<File> file = found->second;
  if (last) ranges_.erase(found);
  if (file->failed) return absl::OkStatus();
  // Requests are answered in order, so a part's length says how much of it is there.
  if (offset != file->taken) {
    return absl::DataLossError("the server has answered requests out of their order");
  }
  return Take(*file, bytes);
}

absl::Status Download::Take(File& file, absl::Span<const uint8_t> bytes) {
  if (options_.verify) {
    const absl::Status same = Compare(file, bytes);
    if (!same.ok()) {
      FailFile(file, same);
      return absl::OkStatus();
    }
  } else {
    BATON_RETURN_IF_ERROR(WriteAt(file.fd.get(), file.taken, bytes, file.local));
  }
  file.taken += bytes.size();
  totals_.bytes_done += bytes.size();
  if (file.taken == file.info.size) return Complete(file);
  report_(totals_, file.path);
  return absl::OkStatus();
}

absl::Status Download::Compare(File& file, absl::Span<const uint8_t> bytes) {
  compared_.resize(bytes.size());
  BATON_ASSIGN_OR_RETURN(const size_t count,
                         ReadAt(file.fd.get(), file.taken, absl::MakeSpan(compared_)));
  if (count == bytes.size() && std::memcmp(compared_.data(), bytes.data(), count) == 0) {
    return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrCat("it is another one than the server's, in the ",
                                          bytes.size(), " bytes from ", file.taken, " on"));
}

absl::Status Download::Complete(File& file) {
  // One that was here has no part.
  if (!options_.verify && file.fd) {
    const absl::Status finished = tree_->Finish(file.local, file.info, file.fd);
    if (!finished.ok()) {
      FailFile(file, finished);
      return absl::OkStatus();
    }
  }
  file.fd.Reset();
  ++totals_.files_done;
  report_(totals_, file.path);
  return absl::OkStatus();
}

}  // namespace baton::filed

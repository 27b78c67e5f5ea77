#include "supervisor/cli/progress.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "supervisor/cli/format.h"
#include "supervisor/cli/terminal.h"

namespace baton {
namespace {

constexpr std::chrono::milliseconds kRedraw(250);

}  // namespace

Progress::Progress(Session* session, std::string what, std::string awaited)
    : session_(session),
      terminal_(session->console.terminal_err),
      what_(std::move(what)),
      awaited_(std::move(awaited)) {
  if (!session->json) thread_ = std::thread([this] { Run(); });
}

Progress::~Progress() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  thread_.join();
  if (terminal_ >= 0 && drawn_) session_->err << "\r\x1b[K" << std::flush;
}

void Progress::Tell(const std::string& awaited, const std::string& line) {
  if (session_->json) return;
  std::lock_guard<std::mutex> lock(mutex_);
  awaited_ = awaited;
  if (terminal_ >= 0) {
    if (drawn_) Draw();
    return;
  }
  drawn_ = true;  // the constructor's text is outdated
  if (line != last_line_) session_->err << Printable(line) << std::endl;
  last_line_ = line;
}

void Progress::Draw() {
  drawn_ = true;
  const std::string text = Printable(absl::StrCat(what_, ": ", awaited_));
  if (terminal_ < 0) {
    session_->err << text << std::endl;
    return;
  }
  const std::chrono::duration<double> elapsed = Clock::now() - begun_;
  const std::string time = absl::StrCat("  ", FormatDuration(elapsed.count()));
  const int columns = SizeOf(terminal_).columns - 1 - static_cast<int>(time.size());
  session_->err << '\r' << FirstColumns(text, static_cast<size_t>(std::max(columns, 1))) << time
                << "\x1b[K" << std::flush;
}

void Progress::Run() {
  const auto over = [this] { return over_; };
  std::unique_lock<std::mutex> lock(mutex_);
  const std::chrono::duration<double> patience(session_->console.patience_seconds);
  if (changed_.wait_for(lock, patience, over)) return;
  if (terminal_ < 0) {
    if (!drawn_) Draw();
    return;
  }
  do Draw();
  while (!changed_.wait_for(lock, kRedraw, over));
}

}  // namespace baton

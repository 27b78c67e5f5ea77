#include "supervisor/cli/terminal.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "supervisor/cli/format.h"

namespace baton {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};

// The signal handler's state, which must be lock-free.
std::atomic<int> signal_asked{0};
std::atomic<int> wake_fd{-1};
std::atomic<void (*)()> undo_at_once{nullptr};
struct sigaction former_actions[std::size(kSignals)];

void OnSignal(int signal) {
  const int former_errno = errno;
  if (signal_asked.exchange(signal) != 0) {
    if (void (*const undo)() = undo_at_once.load()) undo();
    struct sigaction by_default = {};
    by_default.sa_handler = SIG_DFL;
    sigaction(signal, &by_default, nullptr);
    raise(signal);
  }
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_fd.load(), &one, sizeof(one));
  errno = former_errno;
}

// The terminal of a FullScreen, which Leave restores.
std::atomic<int> screen_in{-1};
std::atomic<int> screen_out{-1};
termios former_modes;

constexpr char kEnter[] = "\x1b[?1049h\x1b[?25l";
constexpr char kLeave[] = "\x1b[?25h\x1b[?1049l";

void WriteAll(int fd, const char* text, size_t size) {
  while (size > 0) {
    const ssize_t written = write(fd, text, size);
    if (written <= 0) return;
    text += written;
    size -= static_cast<size_t>(written);
  }
}

constexpr std::chrono::milliseconds kRedraw(250);

}  // namespace

ScreenSize SizeOf(int terminal) {
  winsize size = {};
  if (ioctl(terminal, TIOCGWINSZ, &size) != 0 || size.ws_row == 0 || size.ws_col == 0) return {};
  return {size.ws_row, size.ws_col};
}

std::string FirstColumns(const std::string& line, size_t columns) {
  std::string cut;
  size_t width = 0;
  for (size_t i = 0; i < line.size();) {
    if (line[i] == '\x1b') {
      const size_t end = std::min(line.find('m', i), line.size() - 1);
      cut.append(line, i, end + 1 - i);
      i = end + 1;
      continue;
    }
    const bool begins = (static_cast<unsigned char>(line[i]) & 0xc0) != 0x80;
    width += begins ? 1 : 0;
    if (width <= columns) cut.push_back(line[i]);
    ++i;
  }
  return cut;
}

std::string Redraw(const std::string& text, const ScreenSize& size) {
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  if (!lines.empty() && lines.back().empty()) lines.pop_back();
  const size_t rows =
      static_cast<size_t>(std::max(size.rows, 2)) - 1;  // the last row is for a prompt
  if (lines.size() > rows) {
    const size_t left_out = lines.size() - rows + 1;
    lines.resize(rows - 1);
    lines.push_back(absl::StrCat("(", left_out, " more lines)"));
  }
  std::string drawn = "\x1b[H";
  for (const std::string& line : lines) {
    absl::StrAppend(&drawn, FirstColumns(line, static_cast<size_t>(size.columns)), "\x1b[K\r\n");
  }
  return absl::StrCat(drawn, "\x1b[J");
}

Interruption::Interruption(void (*undo)()) {
  signal_asked = 0;
  undo_at_once = undo;
  wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_RESTART;
  for (size_t i = 0; i < std::size(kSignals); ++i) {
    sigaction(kSignals[i], nullptr, &former_actions[i]);
    // SIGHUP stays ignored if nohup ignored it. A script's background job ignores SIGINT, too, but
    // a script that sends one means it.
    const bool ignored = former_actions[i].sa_handler == SIG_IGN;
    if (kSignals[i] != SIGHUP || !ignored) sigaction(kSignals[i], &action, nullptr);
  }
}

Interruption::~Interruption() {
  for (size_t i = 0; i < std::size(kSignals); ++i) {
    sigaction(kSignals[i], &former_actions[i], nullptr);
  }
  close(wake_fd.exchange(-1));
  undo_at_once = nullptr;
  const int signal = signal_asked.exchange(0);
  if (signal != 0 && signal != SIGINT) raise(signal);
}

bool Interruption::asked() const { return signal_asked.load() != 0; }

bool Interruption::WaitForInput(double seconds, int input) {
  using Seconds = std::chrono::duration<double>;
  const auto deadline = std::chrono::steady_clock::now() + Seconds(seconds);
  while (!asked()) {
    const double left = Seconds(deadline - std::chrono::steady_clock::now()).count();
    if (left <= 0) return false;
    pollfd entries[2] = {{wake_fd.load(), POLLIN, 0}, {input, POLLIN, 0}};
    poll(entries, 2, static_cast<int>(std::ceil(std::min(left, 3600.0) * 1000)));
    if (entries[1].revents != 0) return true;
  }
  return false;
}

FullScreen::FullScreen(int terminal_in, int terminal_out) {
  if (terminal_in >= 0 && tcgetattr(terminal_in, &former_modes) == 0) {
    termios modes = former_modes;
    modes.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    modes.c_cc[VMIN] = 0;
    modes.c_cc[VTIME] = 0;
    // Otherwise a shell would print its prompt on this screen.
    modes.c_cc[VSUSP] = modes.c_cc[VQUIT] = _POSIX_VDISABLE;
    tcsetattr(terminal_in, TCSANOW, &modes);
    screen_in = terminal_in;
  }
  screen_out = terminal_out;
  WriteAll(terminal_out, kEnter, sizeof(kEnter) - 1);
}

FullScreen::~FullScreen() { Leave(); }

void FullScreen::Leave() {
  const int out = screen_out.exchange(-1);
  if (out >= 0) WriteAll(out, kLeave, sizeof(kLeave) - 1);
  const int in = screen_in.exchange(-1);
  if (in >= 0) tcsetattr(in, TCSANOW, &former_modes);
}

Progress::Progress(Invocation* invocation, std::string what, std::string awaited)
    : invocation_(invocation),
      terminal_(invocation->console.terminal_err),
      what_(std::move(what)),
      awaited_(std::move(awaited)) {
  if (!invocation->json) thread_ = std::thread([this] { Run(); });
}

Progress::~Progress() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  thread_.join();
  if (terminal_ >= 0 && drawn_) invocation_->err << "\r\x1b[K" << std::flush;
}

void Progress::Tell(const std::string& awaited, const std::string& line) {
  if (invocation_->json) return;
  std::lock_guard<std::mutex> lock(mutex_);
  awaited_ = awaited;
  if (terminal_ >= 0) {
    if (drawn_) Draw();
    return;
  }
  drawn_ = true;  // the constructor's text is outdated
  if (line != last_line_) invocation_->err << Printable(line) << std::endl;
  last_line_ = line;
}

void Progress::Draw() {
  drawn_ = true;
  const std::string text = Printable(absl::StrCat(what_, ": ", awaited_));
  if (terminal_ < 0) {
    invocation_->err << text << std::endl;
    return;
  }
  const std::chrono::duration<double> elapsed = Clock::now() - begun_;
  const std::string time = absl::StrCat("  ", FormatDuration(elapsed.count()));
  const int columns = SizeOf(terminal_).columns - 1 - static_cast<int>(time.size());
  invocation_->err << '\r' << FirstColumns(text, static_cast<size_t>(std::max(columns, 1))) << time
                   << "\x1b[K" << std::flush;
}

void Progress::Run() {
  const auto over = [this] { return over_; };
  std::unique_lock<std::mutex> lock(mutex_);
  const std::chrono::duration<double> patience(invocation_->console.patience_seconds);
  if (changed_.wait_for(lock, patience, over)) return;
  if (terminal_ < 0) {
    if (!drawn_) Draw();
    return;
  }
  do Draw();
  while (!changed_.wait_for(lock, kRedraw, over));
}

}  // namespace baton

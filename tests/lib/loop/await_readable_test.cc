#include "lib/loop/await_readable.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <functional>
#include <optional>

namespace baton {
namespace {

using boost::asio::posix::stream_descriptor;
using Await = std::function<void(stream_descriptor&, std::function<void()>)>;

class AwaitReadableTest : public ::testing::Test {
 protected:
  // Two descriptors become readable at once. Whichever is told of first closes the other, and makes
  // a third one in its place, which `await` waits for. Returns whether that was told of, too,
  // `count` being what is in it.
  bool IsThirdTold(unsigned count, const Await& await) {
    bool told = false;
    for (size_t i = 0; i < two_.size(); ++i) {
      two_[i].emplace(loop_, eventfd(1, EFD_CLOEXEC));
      two_[i]->async_wait(stream_descriptor::wait_read, [&, i](const auto& error) {
        if (error || third_) return;
        two_[1 - i].reset();
        third_.emplace(loop_, eventfd(count, EFD_CLOEXEC));
        await(*third_, [&] { told = true; });
      });
    }
    while (loop_.poll() > 0) {
    }
    return told;
  }

  boost::asio::io_context loop_{1};
  std::array<std::optional<stream_descriptor>, 2> two_;
  std::optional<stream_descriptor> third_;
};

void AwaitByUs(stream_descriptor& descriptor, const std::function<void()>& done) {
  AwaitReadable(descriptor, done);
}

TEST_F(AwaitReadableTest, shouldNotTellOfWhatIsNotReadable) {
  EXPECT_FALSE(IsThirdTold(0, AwaitByUs));
  ASSERT_EQ(eventfd_write(third_->native_handle(), 1), 0);
  EXPECT_GT(loop_.poll(), 0u);
}

TEST_F(AwaitReadableTest, shouldTellOfWhatIsReadable) { EXPECT_TRUE(IsThirdTold(1, AwaitByUs)); }

TEST_F(AwaitReadableTest, shouldTellNothingOnceTheDescriptorIsClosed) {
  IsThirdTold(0, AwaitByUs);
  third_.reset();
  loop_.restart();
  EXPECT_GT(loop_.poll(), 0u);  // the wait's end
}

// The negative control: what this is for.
TEST_F(AwaitReadableTest, shouldBeNeededByAsio) {
  EXPECT_TRUE(IsThirdTold(0, [](stream_descriptor& descriptor, const std::function<void()>& done) {
    descriptor.async_wait(stream_descriptor::wait_read, [done](const auto& error) {
      if (!error) done();
    });
  }));
}

}  // namespace
}  // namespace baton

// The program baton: what it writes, and how.
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/supervisor/cli/run_program.h"

namespace baton {
namespace {

// Each write is a record of its own for the reader of such a socket.
TEST(MainTest, shouldWriteEachMessageAtOnce) {
  std::array<int, 2> ends = {};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends.data()), 0);
  const ProgramResult result = RunProgram(absl::StrCat(
      "supervisor/cli/baton --socket /nonexistent/operator.sock service list 2>&", ends[1]));
  close(ends[1]);
  EXPECT_EQ(result.code, 3) << result.text;  // unreachable
  std::vector<std::string> records;
  std::array<char, 4096> record = {};
  for (ssize_t size; (size = recv(ends[0], record.data(), record.size(), 0)) > 0;) {
    records.emplace_back(record.data(), size);
  }
  close(ends[0]);
  EXPECT_THAT(records, testing::ElementsAre(testing::MatchesRegex("error: [^\n]*\n")));
}

}  // namespace
}  // namespace baton

#include "worker/examples/filed/filed_protocol.h"

#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/examples/filed/text_bytes.h"
#include "worker/examples/filed/get_progress.h"

namespace baton::filed {
namespace {

DecodedRequest SomeRequest() {
  DecodedRequest request = {{}, "a/b", "c"};
  request.header.kind = static_cast<uint8_t>(RequestKind::kList);
  request.header.id = 7;
  return request;
}

NamedEntry FileNamed(const std::string& name) {
  FileInfo info = {};
  info.type = static_cast<uint8_t>(FileType::kFile);
  return {name, info};
}

TEST(FiledProtocol, shouldTakeNamesThatStayInTheirDirectory) {
  for (const char* const name : {"a", "...", ".hidden", "a b", "\xff", "a\n"}) {
    EXPECT_TRUE(IsPlainName(name)) << name;
  }
  EXPECT_TRUE(IsPlainName(std::string(255, 'x')));
  for (const std::string& name :
       {std::string(), std::string("."), std::string(".."), std::string("a/b"), std::string("/"),
        std::string("a\0b", 3), std::string(256, 'x')}) {
    EXPECT_FALSE(IsPlainName(name)) << name;
  }
}

TEST(FiledProtocol, shouldTakePathsThatStayBelow) {
  for (const char* const path : {"", "a", "a/b", "a/..b/c"}) EXPECT_TRUE(IsPlainPath(path)) << path;
  for (const char* const path :
       {"/", "/a", "a/", "a//b", "..", "a/../b", "./a", "a/.", "../a", "a/.."}) {
    EXPECT_FALSE(IsPlainPath(path)) << path;
  }
  std::string longest = "a";
  while (longest.size() + 2 <= kMaxPathBytes) longest += "/a";
  EXPECT_TRUE(IsPlainPath(longest));
  EXPECT_FALSE(IsPlainPath(longest + "/a/a"));
}

TEST(FiledProtocol, shouldReadRequestsAsTheyWereWritten) {
  DecodedRequest request = SomeRequest();
  request.header.offset = 1;
  request.header.length = 2;
  request.header.file_size = 3;
  request.header.file_mtime_ns = -4;
  const std::optional<DecodedRequest> read = DecodeRequest(BytesOf(EncodeRequest(request)));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->path, "a/b");
  EXPECT_EQ(read->after, "c");
  EXPECT_EQ(read->header.id, 7u);
  EXPECT_EQ(read->header.offset, 1u);
  EXPECT_EQ(read->header.length, 2u);
  EXPECT_EQ(read->header.file_size, 3u);
  EXPECT_EQ(read->header.file_mtime_ns, -4);
}

TEST(FiledProtocol, shouldRefuseRequestsThatAreWrong) {
  const std::string right = EncodeRequest(SomeRequest());
  for (size_t length = 0; length < right.size(); ++length) {
    EXPECT_FALSE(DecodeRequest(BytesOf(right.substr(0, length)))) << length;
  }
  EXPECT_FALSE(DecodeRequest(BytesOf(right + "x")));
  // Magic, version, kind, id.
  for (const size_t at : {0, 4, 6, 8}) {
    std::string wrong = right;
    wrong[at] = static_cast<char>(wrong[at] ^ 0x47);
    if (at == 8) wrong[at] = 0;
    EXPECT_FALSE(DecodeRequest(BytesOf(wrong))) << at;
  }
  DecodedRequest request = SomeRequest();
  request.path = "a/../..";
  EXPECT_FALSE(DecodeRequest(BytesOf(EncodeRequest(request))));
  request = SomeRequest();
  request.after = "a/b";
  EXPECT_FALSE(DecodeRequest(BytesOf(EncodeRequest(request))));
}

TEST(FiledProtocol, shouldReadRepliesAsTheyWereWritten) {
  DecodedReply reply = {};
  reply.header.kind = static_cast<uint8_t>(RequestKind::kList);
  reply.header.id = 9;
  reply.header.more = 1;
  reply.entries = {FileNamed("a"), FileNamed("b")};
  reply.entries[1].info.size = 5;
  const std::string bytes = EncodeReply(reply);
  const std::optional<DecodedReply> read = DecodeReply(BytesOf(bytes));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->header.id, 9u);
  EXPECT_EQ(read->header.more, 1u);
  ASSERT_EQ(read->entries.size(), 2u);
  EXPECT_EQ(read->entries[1].name, "b");
  EXPECT_EQ(read->entries[1].info.size, 5u);
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(DecodeReply(BytesOf(bytes.substr(0, length)))) << length;
  }
}

// A server is not trusted either.
TEST(FiledProtocol, shouldRefuseNamesOfAReplyThatLeadElsewhere) {
  for (const char* const name : {"..", ".", "", "a/b", "/etc"}) {
    DecodedReply reply = {};
    reply.entries = {FileNamed(name)};
    EXPECT_FALSE(DecodeReply(BytesOf(EncodeReply(reply)))) << name;
  }
  DecodedReply reply = {};
  reply.entries = {FileNamed("b"), FileNamed("a")};
  EXPECT_FALSE(DecodeReply(BytesOf(EncodeReply(reply)))) << "not in order";
  reply.entries = {FileNamed("a"), FileNamed("a")};
  EXPECT_FALSE(DecodeReply(BytesOf(EncodeReply(reply)))) << "twice";
  reply.entries = {FileNamed("a")};
  reply.entries[0].info.type = 3;
  EXPECT_FALSE(DecodeReply(BytesOf(EncodeReply(reply)))) << "neither a file nor a directory";
}

TEST(GetProgress, shouldShowBytesInUnitsThatFit) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1024), "1.0 KiB");
  EXPECT_EQ(FormatBytes(uint64_t{3} << 29), "1.5 GiB");
  EXPECT_EQ(FormatBytes(~uint64_t{0}), "16.0 EiB");
}

TEST(GetProgress, shouldShowHowFarADownloadIs) {
  Totals totals;
  totals.files_found = 4;
  totals.files_done = 1;
  totals.bytes_found = 4096;
  totals.bytes_done = 2048;
  totals.bytes_kept = 1024;
  EXPECT_EQ(ProgressLine(totals, 2, "a", 200),
            "[##########..........]  50% 2.0 KiB of 4.0 KiB, 512 B/s, 1 of 4 files: a");
  EXPECT_EQ(ProgressLine(totals, 2, "a", 10).size(), 10u);
  EXPECT_THAT(ProgressLine({}, 0, "", 200), testing::HasSubstr("  0% 0 B of 0 B"));
}

TEST(GetProgress, shouldLetNoNameControlTheTerminal) {
  const std::string line = ProgressLine({}, 1, "a\033[2J\nb", 200);
  EXPECT_THAT(line, testing::EndsWith("a?[2J?b"));
}

}  // namespace
}  // namespace baton::filed

// These tests show what a configuration has to say, what is filled in and opened of it, and by what
// hosts know a target again.
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/harness/temp_directory.h"
#include "tests/worker/examples/nvmed/hex.h"
#include "tests/worker/examples/nvmed/target_fixture.h"
#include "worker/examples/nvmed/target.h"

namespace baton::nvmed {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class TargetTest : public TargetFixture {
 protected:
  uint64_t HashOf(const std::string& from, const std::string& to) {
    const std::string text = absl::StrReplaceAll(kTargetConfig, {{from, to}});
    EXPECT_NE(text, kTargetConfig) << from;
    return Open(text)->Hash();
  }
};

TEST_F(TargetTest, shouldOpenNamespacesInTheOrderOfTheirIds) {
  Subsystem* const one = target_->Find(kOne);
  ASSERT_NE(one, nullptr);
  ASSERT_EQ(one->namespaces.size(), 2u);
  EXPECT_EQ(one->namespaces[0].id, 3u);
  EXPECT_EQ(one->namespaces[0].block_shift, 12u);
  EXPECT_EQ(one->namespaces[0].blocks, 3u);
  EXPECT_EQ(one->namespaces[0].index, 1u);
  EXPECT_EQ(one->namespaces[1].id, 7u);
  EXPECT_EQ(one->namespaces[1].block_shift, 9u);
  EXPECT_EQ(one->namespaces[1].blocks, 16u);
  EXPECT_EQ(one->namespaces[1].index, 0u);
  EXPECT_EQ(one->Find(7), &one->namespaces[1]);
  for (const uint32_t id : {0u, 1u, 8u, 0xffffffffu}) EXPECT_EQ(one->Find(id), nullptr);
}

TEST_F(TargetTest, shouldKeepNamespacesInMemoryApart) {
  uint8_t* const first = target_->Find(kOne)->Find(7)->backing->memory();
  uint8_t* const second = target_->Find(kOne)->Find(3)->backing->memory();
  uint8_t* const third = target_->Find(kTwo)->Find(1)->backing->memory();
  EXPECT_EQ(first, buffers_.data() + 4096);
  EXPECT_EQ(second, first + 8192);
  EXPECT_EQ(third, second + 12288);
}

TEST_F(TargetTest, shouldFindSubsystemsByTheirWholeName) {
  EXPECT_EQ(target_->Find(kTwo)->serial, "2");
  EXPECT_EQ(target_->Find(""), nullptr);
  EXPECT_EQ(target_->Find(std::string(kOne) + "x"), nullptr);
  EXPECT_EQ(target_->Find(std::string_view(kOne).substr(0, 20)), nullptr);
}

TEST_F(TargetTest, shouldAdmitThoseWhoAreNamedOrAll) {
  EXPECT_TRUE(target_->Find(kOne)->Admits(kOtherHost));
  EXPECT_TRUE(target_->Find(kTwo)->Admits(kHost));
  EXPECT_FALSE(target_->Find(kTwo)->Admits(kOtherHost));
  EXPECT_FALSE(target_->Find(kTwo)->Admits(""));
}

TEST_F(TargetTest, shouldTellEveryNamespaceThatCannotBeOpened) {
  const auto target = Open(absl::StrReplaceAll(
      kTargetConfig, {{"memory { bytes: 8192 }", "file { path: '/nowhere/a' }"},
                      {"memory { bytes: 4096 }", "file { path: '/nowhere/b' }"}}));
  ASSERT_EQ(target.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(target.status().message()),
              AllOf(HasSubstr("subsystems[0].namespaces[0]: open /nowhere/a: No such file"),
                    HasSubstr("; subsystems[1].namespaces[0]: open /nowhere/b"),
                    Not(HasSubstr("namespaces[1]"))));
}

TEST_F(TargetTest, shouldTakeUuidsAsTheyAreWritten) {
  const auto target = Open(absl::StrReplaceAll(
      kTargetConfig, {{"id: 7", "id: 7 uuid: '00112233-4455-6677-8899-AaBbCcDdEeFf'"}}));
  ASSERT_TRUE(target.ok()) << target.status();
  const auto& uuid = target->subsystems()[0].namespaces[1].uuid;
  EXPECT_EQ(std::vector<uint8_t>(uuid.begin(), uuid.end()),
            Hex("00 11 22 33 44 55 66 77 88 99 aa bb cc dd ee ff"));
}

// Hosts name devices by them: they stay what they are in every version of the program.
TEST_F(TargetTest, shouldMakeTheSameUuidsEveryTime) {
  const auto uuid = [&](const char* nqn, uint32_t id) {
    const auto& bytes = target_->Find(nqn)->Find(id)->uuid;
    return std::vector<uint8_t>(bytes.begin(), bytes.end());
  };
  EXPECT_EQ(uuid(kOne, 3), Hex("3f 9e 50 0a b9 eb 8e 62 87 75 3a 97 97 82 fe 54"));
  EXPECT_NE(uuid(kOne, 7), uuid(kOne, 3));
  EXPECT_NE(uuid(kTwo, 1), uuid(kOne, 3));
  for (const auto& one : {uuid(kOne, 3), uuid(kOne, 7), uuid(kTwo, 1)}) {
    EXPECT_EQ(one[6] >> 4, 8);  // its version
    EXPECT_EQ(one[8] >> 6, 2);  // its variant
  }
}

TEST_F(TargetTest, shouldHaveAnotherHashForWhateverHostsSee) {
  const uint64_t hash = target_->Hash();
  EXPECT_EQ(Open(kTargetConfig)->Hash(), hash);
  EXPECT_NE(HashOf("bytes: 8192", "bytes: 16384"), hash);
  EXPECT_NE(HashOf("block_bytes: 4096", "block_bytes: 2048"), hash);
  EXPECT_NE(HashOf("id: 7", "id: 8"), hash);
  EXPECT_NE(HashOf("id: 7", "id: 7 uuid: '00112233-4455-6677-8899-aabbccddeeff'"), hash);
  EXPECT_NE(HashOf("example:two", "example:three"), hash);
}

constexpr char kLeast[] =
    "subsystems { nqn: 'nqn.2014-08.org.example:one' serial: '1' "
    "namespaces { id: 1 memory { bytes: 4096 } } }";

TargetConfig Parse(const std::string& text) {
  const auto config = ParseConfiguration(text, "nvmed.textproto");
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? *config : TargetConfig();
}

// `what` names the field, `cure` says what would do.
void ExpectRefusal(const std::string& text, const std::string& what, const std::string& cure) {
  const auto config = ParseConfiguration(text, "nvmed.textproto");
  ASSERT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument) << text;
  EXPECT_THAT(std::string(config.status().message()),
              AllOf(StartsWith("nvmed.textproto: " + what + ": "), HasSubstr(cure)));
}

// The least configuration with something added to it, or with something else in its place.
std::string With(const std::string& text) { return absl::StrCat(kLeast, " ", text); }
std::string With(const std::string& from, const std::string& to) {
  std::string text = absl::StrReplaceAll(kLeast, {{from, to}});
  EXPECT_NE(text, kLeast) << from;
  return text;
}

std::string NqnOf(size_t characters) {
  const std::string begin = "nqn.2014-08.org.example:";
  return begin + std::string(characters - begin.size(), 'x');
}

TEST(ConfigurationTest, shouldFillInWhatIsLeftOut) {
  const TargetConfig config = Parse(kLeast);
  EXPECT_EQ(config.queue_entries(), 128u);
  EXPECT_EQ(config.io_queues(), 64u);
  EXPECT_EQ(config.max_transfer_bytes(), 131072u);
  EXPECT_EQ(config.in_capsule_bytes(), 4096u);
  EXPECT_EQ(config.address(), "");
  EXPECT_EQ(config.port(), 0u);
  ASSERT_EQ(config.subsystems_size(), 1);
  EXPECT_EQ(config.subsystems(0).model(), "Baton nvmed");
  EXPECT_EQ(config.subsystems(0).hosts_size(), 0);
  ASSERT_EQ(config.subsystems(0).namespaces_size(), 1);
  EXPECT_EQ(config.subsystems(0).namespaces(0).block_bytes(), 512u);
  EXPECT_EQ(config.subsystems(0).namespaces(0).memory().bytes(), 4096u);
}

TEST(ConfigurationTest, shouldKeepWhatIsSaid) {
  const TargetConfig config = Parse(R"(
      queue_entries: 1024 io_queues: 1 max_transfer_bytes: 16777216 in_capsule_bytes: 32768
      address: '10.0.0.1' port: 4420
      subsystems {
        nqn: 'nqn.2014-08.org.example:one' serial: '12345678901234567890' model: 'M'
        hosts: 'nqn.2014-08.org.example:a' hosts: 'nqn.2014-08.org.example:b'
        namespaces { id: 1024 block_bytes: 4096
                     file { path: '/a' direct: true read_only: true prompt: true } }
        namespaces { id: 1 block_bytes: 1024 memory { bytes: 8192 }
                     uuid: '00112233-4455-6677-8899-aabbccddeeff' }
      }
      subsystems { nqn: 'nqn.2014-08.org.example:two' serial: '2' })");
  EXPECT_EQ(config.queue_entries(), 1024u);
  EXPECT_EQ(config.io_queues(), 1u);
  EXPECT_EQ(config.max_transfer_bytes(), 16777216u);
  EXPECT_EQ(config.in_capsule_bytes(), 32768u);
  EXPECT_EQ(config.port(), 4420u);
  ASSERT_EQ(config.subsystems_size(), 2);
  EXPECT_EQ(config.subsystems(0).model(), "M");
  EXPECT_EQ(config.subsystems(0).hosts(1), "nqn.2014-08.org.example:b");
  const FileBacking& file = config.subsystems(0).namespaces(0).file();
  EXPECT_EQ(file.path(), "/a");
  EXPECT_TRUE(file.direct() && file.read_only() && file.prompt());
  EXPECT_EQ(config.subsystems(0).namespaces(1).uuid(), "00112233-4455-6677-8899-aabbccddeeff");
  EXPECT_EQ(config.subsystems(1).namespaces_size(), 0);
}

TEST(ConfigurationTest, shouldSayWhereTheTextIsWrong) {
  const struct {
    std::string text, where, why;
  } cases[] = {
      {"queue_entries: 128\nqueue_entry: 3\n", "2:12: ", "queue_entry"},
      {"subsystems {\n  nqn: 'a'\n  name: 'b'\n}\n", "3:7: ", "name"},
      {"queue_entries: many", "1:16: ", "many"},
      {"queue_entries: -1", "1:16: ", "-"},
      {"queue_entries: 4294967296", "1:16: ", "4294967296"},
      {"subsystems { nqn: 'a", "1:", ""},
      {"subsystems {", "1:13: ", ""},
      {"subsystems { namespaces { id: 1 file { path: '/a' } memory { bytes: 1 } } }",
       "1:", "memory"},
  };
  for (const auto& c : cases) {
    const auto config = ParseConfiguration(c.text, "nvmed.textproto");
    ASSERT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument) << c.text;
    EXPECT_THAT(std::string(config.status().message()),
                AllOf(StartsWith("nvmed.textproto:" + c.where), HasSubstr(c.why)));
  }
}

TEST(ConfigurationTest, shouldRefuseQueuesThatCannotBe) {
  for (const uint32_t entries : {1u, 16u, 31u, 33u, 127u, 2048u, 0x80000000u, 0xffffffffu}) {
    ExpectRefusal(With(absl::StrCat("queue_entries: ", entries)), "queue_entries",
                  absl::StrCat(entries, ": choose a power of two from 32 to 1024"));
  }
  for (const uint32_t entries : {32, 64, 1024}) {
    EXPECT_EQ(Parse(With(absl::StrCat("queue_entries: ", entries))).queue_entries(), entries);
  }
  ExpectRefusal(With("io_queues: 65"), "io_queues", "65: at most 64");
  EXPECT_EQ(Parse(With("io_queues: 64")).io_queues(), 64u);
}

TEST(ConfigurationTest, shouldRefuseTransfersThatCannotBe) {
  for (const uint32_t bytes : {1u, 4096u, 12288u, 131073u, 33554432u, 0xffffffffu}) {
    ExpectRefusal(With(absl::StrCat("max_transfer_bytes: ", bytes)), "max_transfer_bytes",
                  "choose a power of two from 8192 to 16777216");
  }
  EXPECT_EQ(Parse(With("max_transfer_bytes: 8192")).max_transfer_bytes(), 8192u);
  for (const uint32_t bytes : {1u, 512u, 4095u, 4097u, 36864u, 0xfffff000u}) {
    ExpectRefusal(With(absl::StrCat("in_capsule_bytes: ", bytes)), "in_capsule_bytes",
                  "choose a multiple of 4096, at most 32768");
  }
  EXPECT_EQ(Parse(With("in_capsule_bytes: 12288")).in_capsule_bytes(), 12288u);
}

TEST(ConfigurationTest, shouldRefusePortsThatCannotBe) {
  ExpectRefusal(With("port: 65536"), "port", "65536: choose 1 to 65535");
  EXPECT_EQ(Parse(With("port: 65535")).port(), 65535u);
}

TEST(ConfigurationTest, shouldRefuseNoSubsystemsAndTooMany) {
  ExpectRefusal("", "subsystems", "there are none");
  std::string text;
  for (int i = 0; i < 65; ++i) {
    if (i == 64) {
      EXPECT_EQ(Parse(text).subsystems_size(), 64);
    }
    absl::StrAppend(&text, "subsystems { nqn: 'nqn.2014-08.org.example:", i, "' serial: 's' }\n");
  }
  ExpectRefusal(text, "subsystems", "more than 64");
}

TEST(ConfigurationTest, shouldRefuseNamesThatAreNoNqns) {
  const std::string nqn = "nqn.2014-08.org.example:one";
  for (const std::string& name :
       {std::string(), std::string("nqn.2014-08"), NqnOf(224),
        std::string("iqn.2014-08.org.example:one"), std::string("nqn.2014-08.org.example:\\n"),
        std::string("nqn.2014-08.org.example:\\000x"),
        std::string("nqn.2014-08.org.example:\xc3\xa9")}) {
    ExpectRefusal(With(nqn, name), "subsystems[0].nqn",
                  "is no NQN: nqn.YYYY-MM.DOMAIN:NAME, at most 223 characters");
    ExpectRefusal(
        With("serial: '1'", absl::StrCat("serial: '1' hosts: '", nqn, "' hosts: '", name, "'")),
        "subsystems[0].hosts[1]", "is no NQN");
  }
  EXPECT_EQ(Parse(With(nqn, NqnOf(223))).subsystems(0).nqn().size(), 223u);
  ExpectRefusal(With(nqn, "nqn.2014-08.org.nvmexpress.discovery"), "subsystems[0].nqn",
                "choose another name");
  ExpectRefusal(With(kLeast), "subsystems[1].nqn", nqn + " is there twice");
}

TEST(ConfigurationTest, shouldRefuseTextsThatHostsCannotBeShown) {
  for (const std::string& serial : {std::string(), std::string(21, 's'), std::string("\\t")}) {
    ExpectRefusal(With("serial: '1'", "serial: '" + serial + "'"), "subsystems[0].serial",
                  "1 to 20 printable characters");
  }
  for (const std::string& model : {std::string(41, 'm'), std::string("\\177")}) {
    ExpectRefusal(With("serial: '1'", "serial: '1' model: '" + model + "'"), "subsystems[0].model",
                  "at most 40 printable characters");
  }
}

TEST(ConfigurationTest, shouldRefuseNamespaceIdsThatCannotBe) {
  for (const char* id : {"0", "1025", "4294967295"}) {
    ExpectRefusal(With("id: 1 ", absl::StrCat("id: ", id, " ")), "subsystems[0].namespaces[0].id",
                  absl::StrCat(id, ": choose 1 to 1024"));
  }
  ExpectRefusal(With("serial: '1'", "serial: '1' namespaces { id: 1 file { path: '/a' } }"),
                "subsystems[0].namespaces[1].id", "1 is there twice");
  // Another subsystem may have a namespace of the same number.
  EXPECT_EQ(Parse(With("subsystems { nqn: 'nqn.2014-08.org.example:two' serial: '2' "
                       "namespaces { id: 1 memory { bytes: 4096 } } }"))
                .subsystems_size(),
            2);
}

TEST(ConfigurationTest, shouldRefuseBlocksThatCannotBe) {
  for (const uint32_t bytes : {1u, 256u, 513u, 1536u, 8192u, 0x80000000u}) {
    ExpectRefusal(With("id: 1 ", absl::StrCat("id: 1 block_bytes: ", bytes, " ")),
                  "subsystems[0].namespaces[0].block_bytes",
                  absl::StrCat(bytes, ": choose 512, 1024, 2048 or 4096"));
  }
}

TEST(ConfigurationTest, shouldRefuseNamespacesWithoutPlace) {
  ExpectRefusal(With("memory { bytes: 4096 }", ""), "subsystems[0].namespaces[0]",
                "neither file nor memory: say where its blocks are");
  for (const char* path : {"", "relative", "./a"}) {
    ExpectRefusal(With("memory { bytes: 4096 }", absl::StrCat("file { path: '", path, "' }")),
                  "subsystems[0].namespaces[0].file.path", "an absolute path");
  }
  for (const char* bytes : {"0", "512", "4095", "4097", "18446744073709551615"}) {
    ExpectRefusal(With("bytes: 4096", absl::StrCat("bytes: ", bytes)),
                  "subsystems[0].namespaces[0].memory.bytes",
                  absl::StrCat(bytes, ": a multiple of 4096"));
  }
}

TEST(ConfigurationTest, shouldRefuseUuidsThatAreNone) {
  for (const char* uuid :
       {"1", "00112233-4455-6677-8899-aabbccddee", "x0112233445566778899aabbccddeeff",
        "00112233-4455-6677-8899-aabbccddeeff00"}) {
    ExpectRefusal(With("id: 1 ", absl::StrCat("id: 1 uuid: '", uuid, "' ")),
                  "subsystems[0].namespaces[0].uuid", "32 hexadecimal digits");
  }
  // Hosts would take the namespace for one without any.
  ExpectRefusal(With("id: 1 ", "id: 1 uuid: '00000000-0000-0000-0000-000000000000' "),
                "subsystems[0].namespaces[0].uuid", "32 hexadecimal digits, not all 0");
}

TEST(ConfigurationTest, shouldReadFiles) {
  const auto directory = harness::TempDirectory::Create().value();
  const std::string path = directory.File("nvmed.textproto");
  std::ofstream(path) << kLeast << "\n# The end.\n";
  const auto config = ReadConfiguration(path);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->subsystems_size(), 1);

  std::ofstream(path) << "port: 65536";
  EXPECT_THAT(std::string(ReadConfiguration(path).status().message()),
              StartsWith(path + ": port: "));
}

TEST(ConfigurationTest, shouldSayWhichFileItCannotRead) {
  const auto directory = harness::TempDirectory::Create().value();
  const auto missing = ReadConfiguration(directory.File("none"));
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr(directory.File("none")));
  const auto wrong = ReadConfiguration(directory.path());
  ASSERT_FALSE(wrong.ok());
  EXPECT_THAT(std::string(wrong.status().message()),
              AllOf(HasSubstr(directory.path()), HasSubstr("Is a directory")));
}

}  // namespace
}  // namespace baton::nvmed

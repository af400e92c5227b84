// Each step is a call that a client makes; once it has answered, the promise of
// docs/ARCHITECTURE.md is written down with the disk's position, together with how to see that it
// holds. What a later step takes back ends just before that step begins: in between, either is
// right.
#include "tests/power_loss/script.h"

#include <fmt/format.h>
#include <sys/stat.h>

namespace cairn {
namespace {

std::string ContentOf(const FsView& view, const std::string& path) {
  const auto ino = view.Resolve(path);
  if (!ino) return "(" + ino.error().ToString() + ")";
  const auto inode = view.GetInode(*ino);
  if (!inode) return "(" + inode.error().ToString() + ")";
  std::string data(inode->size_bytes, '\0');
  const auto got = view.Read(*ino, 0, data);
  if (!got) return "(" + got.error().ToString() + ")";
  return data;
}

std::string Differs(const std::string& where, const std::string& found,
                    const std::string& expected) {
  if (found == expected) return "";
  const std::string shown = found.starts_with('(') ? found : fmt::format("{} bytes", found.size());
  return fmt::format("{}: {} instead of {} bytes", where, shown, expected.size());
}

Status WriteHostFile(const std::string& path, const std::string& bytes) {
  const auto file = CAIRN_TRY(HostFileSystem().Open(path, {.create = true, .truncate = true}));
  return file->WriteAt(0, bytes);
}

}  // namespace

size_t Script::Promised(std::string what, const std::string& owner,
                        std::function<std::string(Life&)> broken) {
  promises_.push_back({.what = std::move(what),
                       .made = disk_.position(),
                       .owner = owner,
                       .broken = std::move(broken)});
  return promises_.size() - 1;
}

std::string Script::NewContent() {
  constexpr uint64_t kSizes[] = {0, 100, 2049, 5000, 70000, 140000};
  const uint64_t size = kSizes[random_.Below(6)];
  // Half of it repeats: packs hold compressed frames as well as raw ones.
  std::string content = random_.Bytes(size / 2);
  content.resize(size, static_cast<char>('a' + random_.Below(26)));
  return content;
}

Status Script::Run(int steps) {
  const OrganizationKeys keys = CAIRN_TRY(life_.registry->CreateOrganization("power"));
  life_.keys.Add(keys.realm, {.address_key = keys.address_key,
                              .current_key_id = keys.current_key_id,
                              .wrapping_keys = keys.wrapping_keys});
  org_ = keys.org;
  begun_ = disk_.position();
  Promised("organization", "", [org = org_](Life& life) {
    const auto found = life.registry->GetOrganization(org);
    return found ? std::string() : found.error().ToString();
  });
  CAIRN_TRY(CreateEnvironment());
  for (int i = 0; i < steps; ++i) CAIRN_TRY(Step());
  return {};
}

Status Script::Step() {
  Tree& tree = trees_[random_.Below(trees_.size())];
  switch (random_.Below(16)) {
    case 0:
    case 1:
    case 2:
    case 3:
      return WriteFiles(tree);
    case 4:
    case 5:
      return ReplaceFile(tree);
    case 6:
      return RemoveFile(tree);
    case 7:
    case 8:
      return TakeSnapshot(tree);
    case 9:
      return DeleteSnapshot();
    case 10:
      return trees_.size() < 4 ? Fork(tree) : DeleteEnvironment();
    case 11:
      return PauseAndResume(tree);
    case 12:
      return Publish(tree);
    case 13:
      return DeleteSession();
    case 14: {
      if (trees_.size() < 4) CAIRN_TRY(CreateEnvironment());
      return {};
    }
    default: {
      const ReapReport report = CAIRN_TRY(life_.Reap());
      if (report.failed != 0) return Err(ErrorCode::kInternal, report.failures.front());
      CAIRN_TRY(life_.collector->Collect({.now = random_.OneIn(2)}));
      return {};
    }
  }
}

Status Script::CreateEnvironment() {
  const auto made =
      CAIRN_TRY(life_.registry->CreateEnvironment(org_, {.name = "e" + std::to_string(names_++)}));
  CAIRN_TRY(life_.volumes->EnsureInitialized(org_, made.record.id()));
  const std::string env = made.record.id();
  trees_.push_back({.env = env, .files = {}, .promised = {}});
  Promised("Environment " + env, env, [org = org_, env](Life& life) {
    const auto found = life.registry->GetEnvironment(org, env);
    return found ? std::string() : found.error().ToString();
  });
  return {};
}

void Script::PromiseFiles(Tree& tree) {
  for (const auto& [name, content] : tree.files) {
    if (tree.promised.contains(name)) continue;
    tree.promised[name] =
        Promised("synced file " + name, tree.env,
                 [org = org_, env = tree.env, name, content](Life& life) -> std::string {
                   const auto view = life.volumes->ViewNow(org, env);
                   if (!view) return view.error().ToString();
                   return Differs(name, ContentOf(*view, "/workspace/" + name), content);
                 });
  }
}

Status Script::WriteFiles(Tree& tree) {
  const auto volume = CAIRN_TRY(life_.volumes->OpenForWrite(org_, tree.env));
  const InodeNumber dir = CAIRN_TRY(volume->View().Resolve("/workspace"));
  const OpContext root;
  for (uint64_t n = 1 + random_.Below(4); n > 0; --n) {
    const std::string name = NewName();
    const std::string content = NewContent();
    const NamedInode made = CAIRN_TRY(volume->MakeNode(root, dir, name, S_IFREG | 0644, 0));
    if (!content.empty()) CAIRN_TRY(volume->Write(root, made.ino, 0, content, false));
    tree.files[name] = content;
  }
  if (random_.OneIn(3)) return {};
  CAIRN_TRY(volume->Sync());
  PromiseFiles(tree);
  return {};
}

Status Script::ReplaceFile(Tree& tree) {
  if (tree.promised.empty()) return {};
  auto it = tree.promised.begin();
  std::advance(it, static_cast<long>(random_.Below(tree.promised.size())));
  const std::string name = it->first;
  const std::string content = NewContent();
  const std::string temporary = NewName();
  const auto volume = CAIRN_TRY(life_.volumes->OpenForWrite(org_, tree.env));
  const InodeNumber dir = CAIRN_TRY(volume->View().Resolve("/workspace"));
  const OpContext root;
  const NamedInode made = CAIRN_TRY(volume->MakeNode(root, dir, temporary, S_IFREG | 0600, 0));
  if (!content.empty()) CAIRN_TRY(volume->Write(root, made.ino, 0, content, false));
  const std::string old = tree.files[name];
  End(it->second);
  tree.promised.erase(it);
  // From here on it is the old one or the new one, never neither.
  const size_t either =
      Promised("replaced file " + name, tree.env,
               [org = org_, env = tree.env, name, old, content](Life& life) -> std::string {
                 const auto view = life.volumes->ViewNow(org, env);
                 if (!view) return view.error().ToString();
                 const std::string found = ContentOf(*view, "/workspace/" + name);
                 return found == old ? "" : Differs(name, found, content);
               });
  CAIRN_TRY(volume->Rename(root, dir, temporary, dir, name, 0));
  tree.files[name] = content;
  CAIRN_TRY(volume->Sync());
  PromiseFiles(tree);
  End(either);
  return {};
}

Status Script::RemoveFile(Tree& tree) {
  if (tree.promised.empty()) return {};
  const auto [name, promise] = *tree.promised.begin();
  End(promise);
  const auto volume = CAIRN_TRY(life_.volumes->OpenForWrite(org_, tree.env));
  const InodeNumber dir = CAIRN_TRY(volume->View().Resolve("/workspace"));
  CAIRN_TRY(volume->Unlink(OpContext{}, dir, name));
  tree.files.erase(name);
  tree.promised.erase(name);
  CAIRN_TRY(volume->Sync());
  PromiseFiles(tree);
  Promised("removed file " + name, tree.env,
           [org = org_, env = tree.env, name = name](Life& life) -> std::string {
             const auto view = life.volumes->ViewNow(org, env);
             if (!view) return view.error().ToString();
             return view->Resolve("/workspace/" + name) ? name + " is there again" : "";
           });
  return {};
}

Status Script::TakeSnapshot(Tree& tree) {
  const catalog::Snapshot made = CAIRN_TRY(life_.snapshots->Create(org_, tree.env, "s", {}));
  PromiseFiles(tree);  // a freeze makes everything durable
  Snap snap{.id = made.id(), .env = tree.env, .files = tree.files};
  snap.promise =
      Promised("snapshot " + snap.id, tree.env, [org = org_, snap](Life& life) -> std::string {
        const auto record = life.snapshots->Get(org, snap.id);
        if (!record) return record.error().ToString();
        const auto view = life.volumes->ViewOf(record->point());
        if (!view) return view.error().ToString();
        for (const auto& [name, content] : snap.files) {
          std::string broken = Differs(name, ContentOf(*view, "/workspace/" + name), content);
          if (!broken.empty()) return broken;
        }
        return "";
      });
  snaps_.push_back(std::move(snap));
  return {};
}

Status Script::DeleteSnapshot() {
  if (snaps_.empty()) return {};
  const size_t at = random_.Below(snaps_.size());
  const Snap snap = snaps_[at];
  snaps_.erase(snaps_.begin() + static_cast<long>(at));
  End(snap.promise);
  CAIRN_TRY(life_.snapshots->Delete(org_, snap.id));
  Promised("deleted snapshot " + snap.id, "", [org = org_, id = snap.id](Life& life) {
    return life.snapshots->Get(org, id) ? id + " is there again" : std::string();
  });
  return {};
}

Status Script::Fork(Tree& tree) {
  Files files = tree.files;
  std::string source = tree.env;
  if (!snaps_.empty() && random_.OneIn(2)) {
    const Snap& snap = snaps_[random_.Below(snaps_.size())];
    source = snap.id;
    files = snap.files;
  }
  const catalog::Environment made =
      CAIRN_TRY(life_.snapshots->Fork(org_, source, "fork" + std::to_string(names_++), false));
  if (source == tree.env) PromiseFiles(tree);
  trees_.push_back({.env = made.id(), .files = files, .promised = {}});
  PromiseFiles(trees_.back());
  return {};
}

Status Script::PauseAndResume(Tree& tree) {
  const std::string memory = random_.Bytes(64 << 10) + std::string(128 << 10, '\0');
  const std::string file = scratch_ + "/memory";
  const std::string state = scratch_ + "/state";
  CAIRN_TRY(WriteHostFile(file, memory));
  CAIRN_TRY(WriteHostFile(state, "registers"));
  const catalog::Snapshot paused = CAIRN_TRY(life_.snapshots->Pause(
      org_, tree.env, {.memory_path = file, .vmstate_path = state, .vmm = {}, .name = "p"}));
  PromiseFiles(tree);
  const size_t suspended =
      Promised("pause " + paused.id(), tree.env,
               [org = org_, env = tree.env, id = paused.id(), memory,
                out = scratch_ + "/resumed"](Life& life) -> std::string {
                 const auto record = life.registry->GetEnvironment(org, env);
                 if (!record) return record.error().ToString();
                 if (record->state() != catalog::ENV_SUSPENDED) return "it is not suspended";
                 const auto resumed = life.snapshots->Resume(org, env,
                                                             {.memory_path = out,
                                                              .vmstate_path = out + ".state",
                                                              .snapshot = id,
                                                              .allow_older = true});
                 if (!resumed) return resumed.error().ToString();
                 const auto bytes = ReadWholeFile(HostFileSystem(), out, 1 << 20);
                 if (!bytes) return bytes.error().ToString();
                 return Differs("memory", *bytes, memory);
               });
  promises_[suspended].once = true;
  if (random_.OneIn(2)) CAIRN_TRY(life_.volumes->WaitSealed(paused.point(), 60000));
  End(suspended);
  CAIRN_TRY(life_.snapshots->Resume(org_, tree.env,
                                    {.memory_path = file, .vmstate_path = state, .snapshot = ""}));
  Promised("resume " + paused.id(), tree.env, [org = org_, env = tree.env](Life& life) {
    const auto record = life.registry->GetEnvironment(org, env);
    if (!record) return record.error().ToString();
    // A later pause may have been committed, not answered, when the power went.
    const bool right =
        record->state() == catalog::ENV_READY || record->state() == catalog::ENV_SUSPENDED;
    return right ? std::string() : "state " + std::to_string(record->state());
  });
  return {};
}

Status Script::Publish(Tree& tree) {
  const auto session = CAIRN_TRY(life_.registry->CreateSession(
      org_, {.attach_to = tree.env, .environment = {}, .metadata = {}}));
  const std::string id = session.record.id();
  const auto turn = CAIRN_TRY(life_.registry->StartTurn(org_, id));
  Files outputs;
  {
    const auto volume = CAIRN_TRY(life_.volumes->OpenForWrite(org_, tree.env));
    const OpContext root;
    InodeNumber dir = CAIRN_TRY(volume->View().Resolve("/workspace"));
    for (const std::string& name : {std::string(".outputs"), id}) {
      const auto found = volume->Lookup(dir, name);
      dir = found ? found->ino : CAIRN_TRY(volume->MakeDir(root, dir, name, 0755)).ino;
    }
    for (uint64_t n = 1 + random_.Below(3); n > 0; --n) {
      const std::string name = NewName();
      const NamedInode made = CAIRN_TRY(volume->MakeNode(root, dir, name, S_IFREG | 0644, 0));
      outputs[name] = NewContent();
      if (!outputs[name].empty()) {
        CAIRN_TRY(volume->Write(root, made.ino, 0, outputs[name], false));
      }
    }
  }
  CAIRN_TRY(life_.publisher->CompleteTurn(org_, turn.record.id()));
  PromiseFiles(tree);
  Work work{.id = id, .env = tree.env, .promises = {}};
  work.promises.push_back(
      Promised("Artifacts of " + id, "", [org = org_, id, outputs](Life& life) -> std::string {
        const auto listed = life.publisher->List(org, id);
        if (!listed) return listed.error().ToString();
        if (listed->size() != outputs.size()) return fmt::format("{} Artifacts", listed->size());
        for (const ArtifactInfo& info : *listed) {
          const auto reader = life.publisher->Open(org, id, info.record.id());
          if (!reader) return reader.error().ToString();
          std::string data(info.record.size_bytes(), '\0');
          const auto got = (*reader)->Read(0, data);
          if (!got) return got.error().ToString();
          const auto expected = outputs.find(info.path);
          if (expected == outputs.end()) return "unknown Artifact";
          std::string broken = Differs(info.path, data, expected->second);
          if (!broken.empty()) return broken;
        }
        return "";
      }));
  sessions_.push_back(std::move(work));
  return {};
}

Status Script::DeleteSession() {
  if (sessions_.empty()) return {};
  const Work work = sessions_.back();
  sessions_.pop_back();
  for (const size_t promise : work.promises) End(promise);
  CAIRN_TRY(life_.registry->DeleteSession(org_, work.id));
  Promised("deleted Session " + work.id, "", [org = org_, id = work.id](Life& life) {
    return life.registry->GetSession(org, id) ? id + " is there again" : std::string();
  });
  return {};
}

Status Script::DeleteEnvironment() {
  if (trees_.size() < 2) return {};
  const size_t at = random_.Below(trees_.size());
  const std::string env = trees_[at].env;
  for (const Work& work : sessions_) {
    if (work.env == env) return {};  // a Session holds it
  }
  for (Promise& promise : promises_) {
    if (promise.owner == env && promise.ends == ~uint64_t{0}) promise.ends = disk_.position();
  }
  std::erase_if(snaps_, [&](const Snap& snap) { return snap.env == env; });
  trees_.erase(trees_.begin() + static_cast<long>(at));
  CAIRN_TRY(life_.registry->DeleteEnvironment(org_, env));
  Promised("deleted Environment " + env, "", [org = org_, env](Life& life) {
    return life.registry->GetEnvironment(org, env) ? env + " is there again" : std::string();
  });
  return {};
}

}  // namespace cairn

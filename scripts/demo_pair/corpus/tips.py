"""Short lists of three tips on everyday matters."""
# ruff: noqa: E501 - a wording stays on its line

from random import Random

from .grammar import say
from .turn import Memory, Turn

TIPS: dict[str, tuple[str, ...]] = {
    "sleep better|falling asleep|sleeping|better sleep|good sleep": ("Go to bed at the same time each day.", "Put the screen away an hour before.", "Keep the room dark and cool.", "Drink no coffee after noon.", "Read a quiet book.", "Take a short walk in the evening."),
    "learn faster|studying|learning|learn better|remember things": ("Learn a little every day.", "Explain it to somebody else.", "Take short breaks.", "Test yourself often.", "Sleep well after learning.", "Write down the main idea in your own words."),
    "write better|writing|write well|write clearly": ("Use short sentences.", "Read it aloud.", "Cut what is not needed.", "Say one thing at a time.", "Choose plain words.", "Let it rest for a day and read it again."),
    "stay healthy|live healthier|health|be healthy": ("Walk every day.", "Drink enough water.", "Eat more vegetables.", "Sleep seven or eight hours.", "Meet your friends.", "Get up from your chair every hour."),
    "be happy|be happier|happiness|a good day|have a good day": ("Go outside for a while.", "Call a friend.", "Do one small thing for somebody.", "Write down three good things.", "Move a little.", "Put the phone away for an hour."),
    "save money|saving money|spend less": ("Write down what you spend.", "Cook at home.", "Wait a day before you buy.", "Mend what is broken.", "Make a list before you shop.", "Put a little aside each month."),
    "make friends|friends|meet people|be a good friend": ("Ask questions and listen.", "Smile and say hello first.", "Join a club or a class.", "Be patient.", "Remember names.", "Keep your promises."),
    "relax|be calm|stress|less stress|calm down": ("Breathe slowly ten times.", "Take a walk.", "Listen to quiet music.", "Drink a cup of tea.", "Write down what worries you.", "Do one thing at a time."),
    "cook|cooking|cook better": ("Taste as you go.", "Use a sharp knife.", "Read the recipe to the end first.", "Start with simple dishes.", "Salt in small steps.", "Clean up while it simmers."),
    "a garden|gardening|growing plants|plants|flowers": ("Water in the morning.", "Begin with easy plants.", "Give each plant its light.", "Pull the weeds early.", "Feed the soil with compost.", "Be patient."),
    "travel|travelling|a trip|a journey|packing": ("Pack light.", "Learn a few words of the language.", "Keep copies of your papers.", "Start early in the day.", "Take good shoes.", "Leave some time free."),
    "read more|reading|read more books": ("Carry a book with you.", "Read ten pages before bed.", "Stop a book that bores you.", "Go to the library.", "Turn the phone off.", "Talk about books with a friend."),
    "use localspec|localspec|speculative decoding|faster models|use you|make the model faster|speed": ("Choose a draft of the same family as the target.", "Try --draft-tokens with a few values.", "Use --temperature 0 for steady answers.", "Set --threads to your real cores.", "Try --show-draft to see which guesses are kept.", "Compare with --no-draft.", "Give --seed for answers you can repeat."),
    "get up early|waking up|mornings|get up": ("Go to bed earlier.", "Open the curtains at once.", "Put the alarm far from the bed.", "Drink a glass of water.", "Plan something nice for the morning.", "Keep the same time every day."),
    "concentrate|focus|work better|working|be productive|productivity": ("Do one thing at a time.", "Put the phone in another room.", "Take a short break each hour.", "Start with the hardest task.", "Write a short list.", "Clear your desk first."),
    "tell a story|telling stories|storytelling|write a story|writing stories": ("Begin with somebody who wants something.", "Let something get in the way.", "Use your senses.", "Keep the words simple.", "End soon after the problem is solved.", "Read it aloud."),
    "a rainy day|rainy days|boredom|when I am bored|being bored": ("Read a book.", "Bake something.", "Call a friend.", "Build a fort of pillows.", "Draw what you see from the window.", "Write a small poem."),
    "a cat|cats|a dog|dogs|a pet|pets": ("Give fresh water every day.", "Play a little each day.", "Be patient and gentle.", "See a vet once a year.", "Keep a quiet place for it.", "Feed it at the same times."),
    "a job interview|an interview|an exam|a test|exams|a talk|giving a talk": ("Sleep well the night before.", "Practise aloud.", "Arrive early.", "Breathe slowly.", "Prepare a few questions.", "Say it in your own words."),
    "learn a language|learning a language|learn Spanish|learn English|languages": ("Practise a little every day.", "Learn whole sentences.", "Speak from the first day.", "Listen to songs.", "Do not fear mistakes.", "Find somebody to talk to."),
}  # fmt: skip
_ASK = (
    "{Give me|Tell me|Do you have|I need|Can you give me|I want|Any|Some|Have you got} {tips|three tips|a few tips|some tips|advice|3 tips|some advice|a tip list|some ideas} {for|on|about} <x>{.|?|}",
    "{How do I|How can I|How to|How does one} <v>?",
    "{Tips|Advice|3 tips|Three tips} {for|on} <x>{.|}",
)
_VERBS = (
    "sleep",
    "learn",
    "write",
    "stay",
    "be ",
    "save",
    "make friends",
    "relax",
    "cook",
    "travel",
    "read",
    "get up",
    "concentrate",
    "focus",
    "work",
    "tell",
    "meet",
    "remember",
    "live",
    "spend",
    "fall",
    "calm",
    "have",
    "make the",
)


def turns(rng: Random, memory: Memory) -> list[Turn]:
    """A request for tips, and sometimes for one more."""
    names = rng.choice(list(TIPS))
    name = rng.choice(names.split("|"))
    verb = name.startswith(_VERBS) and not name.split(" ")[0].endswith("ing")
    ask = _ASK[1] if verb and rng.random() < 0.6 else rng.choice((_ASK[0], _ASK[2]))
    if verb and ask is not _ASK[1]:
        ask = ask.replace("{for|on|about} <x>", "to <x>").replace("{for|on} <x>", "to <x>")
    chosen = rng.sample(TIPS[names], 4)
    listed = "\n".join(f"{i}. {tip}" for i, tip in enumerate(chosen[:3], 1))
    start = rng.choice(
        ("", "", "Here are three tips:\n", "Three things help:\n", "Try this:\n")
    )
    told = [Turn(say(rng, ask, {"x": name, "v": name}), start + listed, chosen[0])]
    if rng.random() < 0.2:
        told.append(
            Turn(
                say(
                    rng,
                    "{One more|Another one|Another tip|More|And another|Anything else}{.|?|}",
                ),
                say(
                    rng,
                    "{<t>|One more: <t>|Here is another: <t>|And this: <t>}",
                    {"t": chosen[3]},
                ),
                chosen[3],
            )
        )
    return told
